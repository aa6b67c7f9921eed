"""Inner loops in assembly: tests/bench/inner_loop.py on what clang and Intel's compiler write."""

from __future__ import annotations

from tests.bench.inner_loop import Loop, inner_loop

AMD = """
	v_fmac_f32_e32 v9, v9, v9
.LBB0_1:                                ; =>This Loop Header: Depth=1
	v_fmac_f32_e32 v9, v9, v9
.LBB0_2:                                ; =>  This Inner Loop Header: Depth=2
	ds_load_b128 v[0:3], v8
	s_waitcnt lgkmcnt(0)
	s_cbranch_execz .LBB0_3
	v_fmac_f32_e32 v4, v0, v1
	v_dual_fmac_f32 v5, v0, v2 :: v_dual_mul_f32 v6, v0, v3
	v_pk_fma_f32 v[4:5], v[0:1], v[2:3], v[4:5]
	v_mad_u32_u24 v7, v0, v1, v2
.LBB0_3:
	s_delay_alu instid0(VALU_DEP_1)
	s_add_i32 s0, s0, -1
	s_cbranch_scc1 .LBB0_2                  ; 8 + 1 instructions, 3 of which multiply and add
	v_mul_f32_e32 v1, v1, v1
	s_branch .LBB0_1
	s_endpgm
"""
INTEL = """
//.declare V0033 (41)  rf=r size=32 type=d alias=+0 align=16 words (r3.0)
_0_001:
(W)     add (1|M0)               r6.3<1>:d     r6.1<0;1,0>:d     1:w               {I@1}             // $315
        send.slm (16|M0)         r20      r40    null:0  0x0   0x042045FE           {$2} // wr:2+0, rd:4; mad
        sync.nop                             null                             {Compacted,$2.dst}     // $400
        mad (16|M0)              r14.0<1>:f    r24.0<1;0>:f      r22.0<1;0>:f      r20.0<0>:f        // $321
        mad (16|M0)              acc0.0<1>:f   r24.0<1;0>:f      r22.0<1;0>:f      r20.1<0>:f        // $322
        mad (16|M0)              r14.0<1>:d    r24.0<1;0>:d      r22.0<1;0>:d      250:w             // $323
(~f0.1) goto (16|M0)                         _0_002            _0_002                                // $324
(f1.0)  goto.b (16|M0)                       _0_002            _0_001           // $325
_0_002:
        mad (16|M0)              r14.0<1>:f    r24.0<1;0>:f      r22.0<1;0>:f      r20.0<0>:f        // $326
"""


def test_amd() -> None:
    assert inner_loop(AMD) == Loop(9, 3)


def test_intel() -> None:
    found = inner_loop(INTEL)
    assert found == Loop(7, 2)
    assert found.share == 2 / 7


def test_of_several_loops_the_one_that_computes_most() -> None:
    copy = ".LBB1_1:\n\tglobal_load_b32 v0, v1, off\n\ts_cbranch_scc1 .LBB1_1\n"
    assert inner_loop(copy + AMD + copy.replace("LBB1", "LBB2")) == Loop(9, 3)


def test_a_block_behind_the_end_is_no_loop() -> None:
    # It makes the last sums, where there is somebody to store them.
    moved = ".LBB1_2:\n" + 9 * "\tv_fmac_f32_e32 v9, v9, v9\n" + "\ts_branch .LBB1_1\n"
    assert inner_loop(AMD.replace("\ts_endpgm", ".LBB1_1:\n\ts_endpgm") + moved) == Loop(9, 3)


def test_no_loop() -> None:
    assert inner_loop("\tv_fmac_f32_e32 v9, v9, v9\n\ts_cbranch_scc1 .LBB0_1\n.LBB0_1:\n\ts_endpgm\n") == Loop(0, 0)
    assert Loop().share == 0
