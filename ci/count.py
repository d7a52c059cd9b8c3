# SPDX-License-Identifier: Apache-2.0
"""Reads Meson's JSON test log: a line for each test, then "PASSED FAILED" for ci/test to add up. A skipped test is a failure: nothing
here may pass by not running."""
import json
import sys

passed = failed = 0
try:
    with open(sys.argv[1], encoding="utf-8") as log:
        for line in log:
            test = json.loads(line)
            ok = test["result"] in ("OK", "EXPECTEDFAIL")
            passed, failed = passed + ok, failed + (not ok)
            print(f"  {'ok    ' if ok else test['result']:7} {test['name']:<32} {test['duration']:5.1f} s")
except FileNotFoundError:
    pass
if passed + failed == 0:
    print("  no test ran")
    failed = 1
print(passed, failed)
