/* SPDX-License-Identifier: Apache-2.0 */
/* A library that is no back end module, for test_context.c. */
int tsr_not_a_module(void);
int tsr_not_a_module(void) {
  return 1;
}
