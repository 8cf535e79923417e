"""The plugin that counts, on single instructions and small loops of real ARM code under qemu."""

import subprocess

import pytest
from emulated_core import CROSS_COMPILER, lacking

from edgecompress.core.counts import CLASSES, COUNTERS
from edgecompress.devices.native.emulation import PLUGIN_FLAGS, PLUGIN_SOURCE, compile_plugin

pytestmark = pytest.mark.skipif(bool(lacking()), reason=f"not here: {', '.join(lacking())}")

START = """
.macro mark
    mov x8, #141
    movz x0, #0x524b
    movk x0, #0x4d41, lsl #16
    mov x1, x19
    add x19, x19, #1
    svc #0
.endm
.global _start
_start:
    mov x19, #0
    adrp x20, room
    add x20, x20, :lo12:room
"""
END = """
    mov x8, #93
    mov x0, #0
    svc #0
.bss
.balign 4096
room: .space 4194304
"""
EMPTY = "// nothing"
MULTIPLIES = [
    "fmla v0.4s, v1.4s, v2.4s",
    "fmla v0.4s, v1.4s, v2.s[1]",
    "fmls v0.2d, v1.2d, v2.2d",
    "fmla v0.8h, v1.8h, v2.8h",
    "fmul v0.8h, v1.8h, v2.8h",
    "fmul v0.4s, v1.4s, v2.s[0]",
    "fmul v0.4s, v1.4s, v2.4s",
    "sdot v0.4s, v1.16b, v2.16b",
    "sdot v0.4s, v1.16b, v2.4b[3]",
    "udot v0.2s, v1.8b, v2.8b",
    "smlal v0.4s, v1.4h, v2.4h",
    "smlal2 v0.4s, v1.8h, v2.h[1]",
    "smull v0.8h, v1.8b, v2.8b",
    "mul v0.8h, v1.8h, v2.8h",
    "mla v0.4s, v1.4s, v2.4s",
    "sqrdmulh v0.4s, v1.4s, v2.4s",
    "sqdmulh v0.8h, v1.8h, v2.h[2]",
    "fmadd s0, s1, s2, s3",
    "fmul s0, s1, s2",
    "fnmul d0, d1, d2",
    "fmul s0, s1, v2.s[1]",
]
SIMD = [
    "fadd v0.4s, v1.4s, v2.4s",
    "fmax v0.4s, v1.4s, v2.4s",
    "fadd v0.8h, v1.8h, v2.8h",
    "fdiv s0, s1, s2",
    "fadd s0, s1, s2",
    "fcmp s0, s1",
    "add v0.4s, v1.4s, v2.4s",
    "addp v0.4s, v1.4s, v2.4s",
    "saddl v0.8h, v1.8b, v2.8b",
    "sqxtn v0.4h, v1.4s",
    "srshl v0.4s, v1.4s, v2.4s",
    "sshr v0.4s, v1.4s, #2",
    "movi v0.4s, #0",
    "dup v0.4s, w1",
    "mov v0.s[1], w1",
    "zip1 v0.4s, v1.4s, v2.4s",
    "ext v0.16b, v1.16b, v2.16b, #4",
    "tbl v0.16b, {v1.16b}, v2.16b",
    "scvtf v0.4s, v1.4s",
    "fcvtns v0.4s, v1.4s",
    "scvtf s0, x1",
    "fmov w1, s0",
    "smaxv s0, v1.4s",
    "eor v0.16b, v1.16b, v2.16b",
]
OTHER = ["add x1, x2, x3", "madd x1, x2, x3, x4", "nop", "mrs x1, tpidr_el0", "cmp x1, #3", "adr x1, ."]
BRANCHES = [
    "b 1f\n1:",
    "bl 1f\n1:",
    "cbz xzr, 1f\n1:",
    "cbnz xzr, 1f\n1:",
    "tbz xzr, #0, 1f\n1:",
    "tbnz x20, #40, 1f\n1:",
    "b.eq 1f\n1:",
]
VECTOR_LOADS = {
    "ld1 {v0.16b}, [x20]": 16,
    "ld1 {v0.8b}, [x20]": 8,
    "ld1 {v0.4s, v1.4s}, [x20]": 32,
    "ld1 {v0.2s, v1.2s, v2.2s}, [x20]": 24,
    "ld1 {v0.4s, v1.4s, v2.4s, v3.4s}, [x20]": 64,
    "ld2 {v0.4s, v1.4s}, [x20]": 32,
    "ld3 {v0.8h, v1.8h, v2.8h}, [x20]": 48,
    "ld4 {v0.8b, v1.8b, v2.8b, v3.8b}, [x20]": 32,
    "ld1 {v0.b}[3], [x20]": 1,
    "ld1 {v0.h}[1], [x20]": 2,
    "ld1 {v0.s}[1], [x20]": 4,
    "ld1 {v0.d}[1], [x20]": 8,
    "ld2 {v0.s, v1.s}[1], [x20]": 8,
    "ld3 {v0.b, v1.b, v2.b}[1], [x20]": 3,
    "ld4 {v0.d, v1.d, v2.d, v3.d}[1], [x20]": 32,
    "ld1r {v0.4s}, [x20]": 4,
    "ld2r {v0.8h, v1.8h}, [x20]": 4,
    "ldr q0, [x20]": 16,
    "ldr d0, [x20, #8]": 8,
    "ldr s0, [x20, x19, lsl #2]": 4,
    "ldr h0, [x20]": 2,
    "ldur b0, [x20, #1]": 1,
    "ldur q0, [x20, #1]": 16,
    "ldp q0, q1, [x20]": 32,
    "ldp d0, d1, [x20, #16]": 16,
    "ldnp s0, s1, [x20]": 8,
    "ldr q0, 1f\n b 2f\n .balign 16\n1: .quad 0, 0\n2:": 16,
}
VECTOR_STORES = {
    "st1 {v0.16b}, [x20]": 16,
    "st1 {v0.4s, v1.4s}, [x20]": 32,
    "st1 {v0.s}[2], [x20]": 4,
    "st4 {v0.8b, v1.8b, v2.8b, v3.8b}, [x20]": 32,
    "str q0, [x20]": 16,
    "str h0, [x20, #2]": 2,
    "stur d0, [x20, #3]": 8,
    "stp q0, q1, [x20, #32]": 32,
}
SCALAR_LOADS = {
    "ldr x1, [x20]": 8,
    "ldr w1, [x20, x19, lsl #2]": 4,
    "ldrb w1, [x20]": 1,
    "ldrsh x1, [x20]": 2,
    "ldrsw x1, [x20]": 4,
    "ldurb w1, [x20, #1]": 1,
    "ldp x1, x2, [x20]": 16,
    "ldp w1, w2, [x20]": 8,
    "ldpsw x1, x2, [x20]": 8,
    "ldxr x1, [x20]": 8,
    "ldaxp x1, x2, [x20]": 16,
    "ldarb w1, [x20]": 1,
    "ldapr w1, [x20]": 4,
    "prfm pldl1keep, [x20, #64]": 0,
    "ldr x1, 1f\n b 2f\n .balign 8\n1: .quad 0\n2:": 8,
}
SCALAR_STORES = {
    "str x1, [x20]": 8,
    "strh w1, [x20]": 2,
    "stp x1, x2, [x20]": 16,
    "stp w1, w2, [x20]": 8,
    "stlr w1, [x20]": 4,
    "stxr w3, x1, [x20]": 8,
}
ATOMICS = {
    "ldadd x1, x2, [x20]": 8,
    "swpb w1, w2, [x20]": 1,
    "cas x1, x2, [x20]": 8,
    "casp x2, x3, x4, x5, [x20]": 16,
}
SWEEP = """
    mov x2, x20
    mov x3, #{lines}
1:  ldr x4, [x2], #64
    subs x3, x3, #1
    b.ne 1b
"""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    path = tmp_path_factory.mktemp("plugin") / "count_plugin.so"
    compile_plugin(path)
    return path


def emulate(folder, plugin, options, *words):
    called = ["qemu-aarch64", "-cpu", "cortex-a76", "-plugin", f"file={plugin}{options}", *words]
    return subprocess.run(called, cwd=folder, capture_output=True, text=True, timeout=60)


def build(folder, snippets):
    """Writes a program with a mark before and after every snippet."""
    source, program = folder / "program.S", folder / "program"
    source.write_text(START + "".join(f"mark\n{snippet}\nmark\n" for snippet in snippets) + END)
    words = [CROSS_COMPILER, "-nostdlib", "-static", "-march=armv8.3-a+dotprod+fp16", source, "-o", program]
    subprocess.run(words, check=True, timeout=60)
    return program


EXACT = ("instructions", *CLASSES, "bytes_loaded", "bytes_stored")


def count(folder, plugin, snippets):
    """Returns what was counted in every snippet, without the marks themselves."""
    program = build(folder, [EMPTY, *snippets])
    done = emulate(folder, plugin, ",out=counts.txt", program)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in (folder / "counts.txt").read_text().splitlines()]
    assert [line[0] for line in lines] == [f"mark={number}" for number in range(len(lines))]
    inside = [{n: int(v) for n, v in (word.split("=") for word in line[1:])} for line in lines[1::2]]
    return [{name: one[name] - inside[0][name] for name in one} for one in inside[1:]]


def exact(counted):
    """Returns only what is counted, not modelled."""
    return {name: counted[name] for name in EXACT}


def only(**counted):
    """Returns the exact counters with these values and 0 for all others."""
    total = sum(value for name, value in counted.items() if name in CLASSES)
    return dict.fromkeys(EXACT, 0) | counted | {"instructions": total}


def expected():
    """Yields every snippet with what should be counted for it."""
    for kind, snippets in (
        ("multiplies", MULTIPLIES),
        ("simd", SIMD),
        ("other", OTHER),
        ("branches", BRANCHES),
    ):
        yield from ((snippet, only(**{kind: 1})) for snippet in snippets)
    for kind, snippets in (("vector_loads", VECTOR_LOADS), ("scalar_loads", SCALAR_LOADS)):
        for snippet, size in snippets.items():
            yield snippet, only(**{kind: 1}, branches=int("b 2f" in snippet), bytes_loaded=size)
    for kind, snippets in (("vector_stores", VECTOR_STORES), ("scalar_stores", SCALAR_STORES)):
        yield from ((snippet, only(**{kind: 1}, bytes_stored=size)) for snippet, size in snippets.items())
    for snippet, size in ATOMICS.items():
        yield snippet, only(scalar_loads=1, bytes_loaded=size, bytes_stored=size)


def test_every_instruction_is_of_the_right_class_and_moves_the_right_bytes(tmp_path, plugin):
    snippets, wanted = zip(*expected(), strict=True)
    found = count(tmp_path, plugin, snippets)
    both = zip(snippets, found, wanted, strict=True)
    wrong = {one: exact(have) for one, have, want in both if exact(have) != want}
    assert wrong == {}


def test_the_counters_are_those_of_the_record(tmp_path, plugin):
    (found,) = count(tmp_path, plugin, ["nop"])
    assert tuple(found) == COUNTERS


def test_a_loop_is_counted_as_often_as_it_runs(tmp_path, plugin):
    (found,) = count(tmp_path, plugin, [SWEEP.format(lines=1000)])
    assert exact(found) == only(scalar_loads=1000, branches=1000, other=1002, bytes_loaded=8000)


def test_two_processes_count_the_same(tmp_path, plugin):
    snippets = [SWEEP.format(lines=3000), "bl 1f\n1:", SWEEP.format(lines=10)]
    assert count(tmp_path, plugin, snippets) == count(tmp_path, plugin, snippets)


# Cycles

LOOP = """
    mov x3, #1000
1:  {body}
    subs x3, x3, #1
    b.ne 1b
"""


def each_round(folder, plugin, bodies, name):
    """Returns cycles per round of loops of these bodies."""
    return [one[name] / 1000 for one in count(folder, plugin, [LOOP.format(body=body) for body in bodies])]


def repeated(text, times=4):
    """Returns an instruction for `times` registers from 8 on."""
    return "\n".join(text.format(register=8 + number) for number in range(times))


TAKEN = {  # cycles the pipes need for a body and the two instructions that close its loop
    repeated("fmla v{register}.4s, v1.4s, v2.4s", 12): 6,
    repeated("fmla v{register}.4s, v1.4s, v2.s[1]", 12): 6,
    repeated("sdot v{register}.4s, v1.16b, v2.4b[1]", 12): 6,
    repeated("smlal v{register}.4s, v1.4h, v2.4h", 12): 12,
    repeated("mla v{register}.4s, v1.4s, v2.4s", 6): 12,
    repeated("ldr q{register}, [x20]", 12): 6,
    repeated("ldp q{register}, q1, [x20]", 12): 12,
    repeated("ld1 {{v{register}.4s}}, [x20]", 12): 6,
    repeated("str q{register}, [x20]", 12): 12,
    repeated("add x{register}, x1, #1", 10): 11 / 3,
    repeated("nop", 14): 4,
    repeated("mul x{register}, x1, x2", 6): 6,
    repeated("sshr v{register}.4s, v1.4s, #2", 12): 12,
    repeated("fcvtns v{register}.4s, v1.4s", 6): 12,
    repeated("zip1 v{register}.4s, v1.4s, v2.4s", 12): 6,
    "b 2f\n2: b 3f\n3: b 4f\n4:": 4,
}
WAITED = {  # cycles until a round's result can start the next one
    "fadd v0.4s, v0.4s, v1.4s": 2,
    "fmul v0.4s, v0.4s, v1.4s": 3,
    "fmla v0.4s, v1.4s, v2.4s": 2,
    "fmla v0.4s, v0.4s, v2.4s": 4,
    "fmla v0.4s, v1.4s, v2.s[0]": 2,
    "fmadd s0, s1, s2, s0": 2,
    "sdot v0.4s, v1.16b, v2.16b": 1,
    "smlal v0.4s, v1.4h, v2.4h": 1,
    "mla v0.4s, v1.4s, v2.4s": 2,
    "ldr x20, [x20]": 4,
    "add x1, x1, #1\n add x1, x1, x2": 2,
    "madd x1, x1, x2, x4": 3,
    "fadd v0.4s, v0.4s, v1.4s\n fmax v0.4s, v0.4s, v1.4s": 4,
    "fmov w1, s0\n fmov s0, w1": 7,
    "ldr q0, [x20], #16": 1,
    "movi v0.4s, #0\n fadd v0.4s, v0.4s, v1.4s": 1,
}


def test_pipes_limit_a_loop(tmp_path, plugin):
    found = each_round(tmp_path, plugin, TAKEN, "issue_cycles")
    assert dict(zip(TAKEN, found, strict=True)) == pytest.approx(TAKEN, abs=0.1)


def test_a_loop_waits_for_its_own_results(tmp_path, plugin):
    pointer = "str x20, [x20]\n"
    bodies = [LOOP.format(body=body) for body in WAITED]
    found = [one["loop_cycles"] / 1000 for one in count(tmp_path, plugin, [pointer, *bodies])[1:]]
    assert dict(zip(WAITED, found, strict=True)) == pytest.approx(WAITED, abs=0.15)


def test_waiting_is_hidden_where_there_is_enough_to_do(tmp_path, plugin):
    one, many = (repeated("fmla v{register}.4s, v1.4s, v2.4s", number) for number in (1, 16))
    alone, together = each_round(tmp_path, plugin, [one, many], "loop_cycles")
    assert alone == pytest.approx(2, abs=0.1)
    assert together == pytest.approx(8, abs=0.2)


def test_leaving_a_loop_is_counted(tmp_path, plugin):
    nested = "mov x5, #7\n9: " + LOOP.format(body="nop") + "\n subs x5, x5, #1\n b.ne 9b"
    one, seven = count(tmp_path, plugin, [LOOP.format(body="nop"), nested])
    assert (one["loop_exits"], seven["loop_exits"]) == (1, 8)


# Caches


L1_LINES, L2_LINES, L3_LINES = 65536 // 64, 524288 // 64, 2097152 // 64
LEVELS = ("l1_misses", "l2_misses", "l3_misses")


@pytest.mark.parametrize(
    ("lines", "again"),
    [
        (L1_LINES, (0, 0, 0)),  # all fit, so nothing is missed when it is read again
        (2 * L1_LINES, (2 * L1_LINES, 0, 0)),  # each line has made room for others before it is read again
        (L2_LINES, (L2_LINES, 0, 0)),
        (2 * L2_LINES, (2 * L2_LINES, 2 * L2_LINES, 0)),
        (2 * L3_LINES, (2 * L3_LINES, 2 * L3_LINES, 2 * L3_LINES)),
    ],
)
def test_the_caches_hold_as_much_as_they_should(tmp_path, plugin, lines, again):
    first, second = count(tmp_path, plugin, [SWEEP.format(lines=lines)] * 2)
    assert [first[name] for name in LEVELS] == [lines] * 3
    assert tuple(second[name] for name in LEVELS) == again
    assert exact(first) == exact(second)


JUMPING = """
    mov x2, x20
    mov x3, #200
1:  ldr x4, [x2]
    add x2, x2, #0xfc0
    add x2, x2, #1, lsl #12
    subs x3, x3, #1
    b.ne 1b
"""
TWO_AT_ONCE = """
    mov x2, x20
    add x5, x20, #1, lsl #12
    mov x3, #50
1:  ldr x4, [x2], #64
    ldr x4, [x5], #64
    subs x3, x3, #1
    b.ne 1b
"""


def test_lines_in_a_row_are_no_jumps(tmp_path, plugin):
    row, far = count(tmp_path, plugin, [SWEEP.format(lines=200), JUMPING])
    assert (row["l3_misses"], row["l3_jumps"]) == (200, 1)
    assert (far["l1_jumps"], far["l3_jumps"]) == (far["l1_misses"], far["l3_misses"])
    assert far["l3_misses"] > 190  # the first ones were in the row
    (both,) = count(tmp_path, plugin, [TWO_AT_ONCE])
    assert (both["l2_misses"], both["l2_jumps"]) == (100, 2)


def test_pages_are_found_again_unless_there_are_too_many(tmp_path, plugin):
    sweep = SWEEP.format(lines=L3_LINES)
    first, second = count(tmp_path, plugin, [sweep, sweep])
    assert first["tlb_misses"] == 2097152 // 4096
    assert (second["l1_misses"], second["tlb_misses"]) == (L3_LINES, 0)


def test_an_access_across_two_lines_touches_both(tmp_path, plugin):
    inside, across, stored = count(
        tmp_path, plugin, ["ldr q0, [x20]", "ldur q0, [x20, #120]", "stp q0, q1, [x20, #256]"]
    )
    assert [one["l1_misses"] for one in (inside, across, stored)] == [1, 2, 1]


@pytest.mark.parametrize("options", ["", ",speed=9", ",out=no-such/counts.txt", ",out=x,speed=9"])
def test_options_that_make_no_sense_are_refused(tmp_path, plugin, options):
    done = emulate(tmp_path, plugin, options, build(tmp_path, []))
    assert done.returncode != 0
    assert "count_plugin: needs" in done.stderr


def test_the_source_compiles_without_a_warning():
    flags = ("-Werror", "-Wshadow", "-Wstrict-prototypes", "-pedantic", "-fsyntax-only")
    done = subprocess.run(["cc", *PLUGIN_FLAGS, *flags, PLUGIN_SOURCE], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
