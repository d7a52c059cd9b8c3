/* SPDX-License-Identifier: Apache-2.0 */
/* The language of score and mask expressions: its limits, grammar and meaning. Nothing here is called.
 *
 * An expression is a NUL-terminated ASCII text in tsr_attention_desc.score_expr or .mask_expr. It is
 * parsed when the plan is made; every back end emits its code from the parsed tree, so that the meaning
 * below holds everywhere. Malformed text is TSR_INVALID, with the field, the column (in bytes, from 1)
 * and the reason in the error.
 *   score_expr  its value, converted to f32, replaces s (after scale, soft cap, ALiBi and bias). It does
 *               not mask: a pair whose value is -inf merely has probability exp(-inf). Whether an expression
 *               that turns a NaN into a number saves the row of an allowed key with NaN is unspecified.
 *   mask_expr   the pair (i, j) is allowed iff the value is not zero (NaN is not zero). May not use score.
 * Examples: "score + 0.5 * (j <= i)", "30 * tanh(score / 30)", "j % 64 < keep", "aux0[b, j] == aux0[b, i]".
 *
 * Grammar. Blanks, tabs and line ends may stand between tokens. Comparisons do not chain.
 *   expr    := or [ '?' expr ':' expr ]
 *   or      := and { '||' and }
 *   and     := rel { '&&' rel }
 *   rel     := add [ ( '<' | '<=' | '>' | '>=' | '==' | '!=' ) add ]
 *   add     := mul { ( '+' | '-' ) mul }
 *   mul     := unary { ( '*' | '/' | '%' ) unary }
 *   unary   := ( '-' | '!' ) unary | primary
 *   primary := number | name | function '(' expr { ',' expr } ')' | aux '[' expr { ',' expr } ']'
 *            | '(' expr ')'
 *   number  := digits (int64, decimal, at most 2^63 - 1), or f32 with a '.' or an exponent: 1.0 .5 2e-3
 * A number is never negative; -2 is a '-' and a number. f32 numbers are rounded to nearest even; one
 * that would round to infinity is an error.
 *
 * Types are int64 and f32. Names and their types:
 *   score                 f32: s so far; only in a score expression
 *   b h hkv               int64: sequence, query head, key/value head h / (Hq / Hkv)
 *   i j                   int64: query and key position, local to the sequence
 *   q_len kv_len off      int64: used lengths of the sequence; kv_len - q_len, or 0 with TSR_TOP_LEFT
 *   inf                   f32: infinity
 *   a declared scalar     f32: tsr_run_args.scalars, in the order of scalar_names
 *   aux0 .. aux7          elements of tsr_attention_desc.aux: f32, or int64 from an i32 tensor. As many
 *                         int64 indices as the tensor has axes; an index outside its axis reads 0
 * A scalar's name is a letter or '_', then letters, digits and '_', at most TSR_EXPR_MAX_NAME in all; it
 * is none of the names above, no function's name and not 'aux' followed by digits.
 *
 * Operators. Where one operand of a binary operator, a comparison, min, max or the branches of ?: is
 * f32, the other is converted to f32 as float() does.
 *   + - *       int64 wraps modulo 2^64; f32 is IEEE, rounded once each (never fused)
 *   /           int64: rounds toward minus infinity, x / 0 = 0, wraps; f32: IEEE
 *   %           int64 only: x - y * (x / y), so it has the sign of y; x % 0 = 0
 *   < <= > >= == !=   int64 0 or 1; with a NaN all but != give 0
 *   && || !     of "not zero" (NaN is not zero), int64 0 or 1
 *   c ? x : y   x if c is not zero, else y
 * Nothing traps and nothing has side effects, so it is not visible which operands are evaluated.
 *
 * Functions. Arguments are converted to f32 and the result is f32, except as noted.
 *   exp exp2 log log2 sqrt tanh sin cos    as in C; natural logarithm; radians
 *   pow(x, y)        as in C
 *   abs(x)           keeps the type; int64 wraps
 *   floor(x)         keeps the type; an int64 is unchanged
 *   min(x, y), max(x, y)   of one type; x at ties; NaN if either is NaN
 *   float(x)         int64 to f32, nearest even; f32 unchanged
 *   int(x)           f32 to int64: toward zero, saturating, NaN gives 0; int64 unchanged
 *
 * Derivative. Backward differentiates a score expression by `score`, symbolically: comparisons, logic,
 * int, floor, scalars and aux are constants; ?: differentiates its branches; abs has slope 0 at 0; min
 * and max take the slope of the operand they return; pow(x, y) is constant in y for x = 0, y >= 0, and has
 * no slope in y (NaN) for x < 0. Aux tensors and scalars get no gradient.
 *
 * Limits, beyond which a text is TSR_INVALID: TSR_EXPR_MAX_BYTES of text (without the NUL);
 * TSR_EXPR_MAX_NODES numbers, names, operators, functions and implied conversions to f32 (a number's sign
 * and its conversion not counted); TSR_EXPR_MAX_DEPTH levels of nesting, where each unary operator, pair
 * of parentheses, function, index list, branch of ?: and implied conversion is a level. A derivative that
 * outgrows the larger limits set for it is TSR_UNSUPPORTED. */
#ifndef TESSERA_EXPRESSION_H
#define TESSERA_EXPRESSION_H

#define TSR_EXPR_MAX_SCALARS 16 /* named scalars of a plan */
#define TSR_EXPR_MAX_AUX 8      /* aux tensors of a plan */
#define TSR_EXPR_MAX_AUX_RANK 4 /* axes of one aux tensor */
#define TSR_EXPR_MAX_NAME 31    /* bytes of a scalar's name */
#define TSR_EXPR_MAX_BYTES 4096
#define TSR_EXPR_MAX_NODES 512
#define TSR_EXPR_MAX_DEPTH 64

#endif
