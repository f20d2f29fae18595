//! Thousands of broken traces through the reader's own entry function, as the fuzz targets
//! in `fuzz/` do it, but seeded and bounded, so that every build runs it.

use oversub_sim::trace::{Access, Launch, Program, Random, Step, read_from};

/// Traces made here, not recorded: one event of every kind, in several orders.
const SEEDS: [&str; 3] = [
    r#"{"format":"oversub-trace","version":1,"workload":"w","source":"record","gpu":{"name":"g","memory_bytes":1},"iterations":1,"footprint_bytes":4194304}
{"e":"alloc","addr":4194304,"bytes":4194304}
{"e":"use","addr":4194304,"bytes":100000}
{"e":"use","addr":4294304,"bytes":4000000}
{"e":"host","r":[],"w":[[4194304,2000000]]}
{"e":"iter","n":0}
{"e":"k","fn":"gemm","sig":"ff","us":1.5,"r":[[4194304,65536],[4194304,9]],"w":[[4194304,2097152]],"v":1,"sync":1}
{"e":"unuse","addr":4194304}
{"e":"k","fn":"memcpyDtoH","sig":"0","us":0,"r":[[4194304,8]],"w":[],"p":[7,8]}
{"e":"unuse","addr":4294304}
{"e":"free","addr":4194304}
"#,
    r#"{"format":"oversub-trace","version":1,"workload":"w","source":"generated","gpu":{"name":"g","memory_bytes":1},"iterations":2,"footprint_bytes":1,"kernels":2}
{"e":"alloc","addr":0,"bytes":1000}
{"e":"alloc","addr":1000,"bytes":9000000}
{"e":"iter","n":0}
{"e":"k","fn":"a","sig":"deadbeef","us":10,"r":[[0,1000],[1000,9000000]],"w":[[5000000,10]]}
{"e":"iter","n":1}
{"e":"k","fn":"a","sig":"deadbeef","us":10.25,"r":[[0,1000],[1000,9000000]],"w":[[5000000,10]],"p":null}
{"e":"free","addr":0}
{"e":"alloc","addr":0,"bytes":999}
"#,
    r#"{"format":"oversub-trace","version":1,"workload":"\u00e9","source":"g10","gpu":{"name":"g","memory_bytes":1,"x":[1,[2]]},"iterations":0,"footprint_bytes":0}
"#,
];

/// What mutation puts in: keywords of the format, and numbers at which something turns.
const WORDS: [&str; 24] = [
    "\"e\":",
    "\"addr\":",
    "\"bytes\":",
    "\"alloc\"",
    "\"free\"",
    "\"use\"",
    "\"unuse\"",
    "\"k\"",
    "\"host\"",
    "\"iter\"",
    "[[",
    "]]",
    "{",
    "}",
    "\n",
    "null",
    "-1",
    "0",
    "1e999",
    "65536",
    "2097152",
    "18446744073709551615",
    "9007199254740993",
    "\\ud800",
];

fn mutate(text: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(3) {
        let at = random.below(text.len() as u64 + 1) as usize;
        let other = random.below(text.len() as u64 + 1) as usize;
        let (from, to) = (at.min(other), at.max(other));
        match random.below(10) {
            0 if at < text.len() => text[at] = random.next_u64() as u8,
            1 if at < text.len() => text[at] ^= 1 << random.below(8),
            2 => text.truncate(at),
            3 => drop(text.drain(from..to.min(from + 40))),
            4 => {
                let copy = text[from..to.min(from + 200)].to_vec();
                text.splice(other..other, copy);
            }
            5 => {
                // A whole line again, somewhere: the order of events is what breaks most.
                let lines: Vec<&[u8]> = text.split_inclusive(|byte| *byte == b'\n').collect();
                if let Some(line) = lines.get(random.below(lines.len() as u64) as usize) {
                    let line = line.to_vec();
                    let before = random.below(lines.len() as u64 + 1) as usize;
                    let at: usize = lines[..before].iter().map(|line| line.len()).sum();
                    text.splice(at..at, line);
                }
            }
            6 | 7 => {
                // Another digit: still JSON, about something else.
                let digit = text[at..].iter().position(u8::is_ascii_digit);
                if let Some(digit) = digit {
                    text[at + digit] = b'0' + random.below(10) as u8;
                }
            }
            _ => {
                let word = WORDS[random.below(WORDS.len() as u64) as usize].bytes();
                let end = if random.chance(50) {
                    at
                } else {
                    (at + 4).min(text.len())
                };
                text.splice(at..end, word);
            }
        }
    }
}

/// Everything that the rest of the simulator relies on.
fn check(program: &Program) {
    let blocks = program.blocks();
    let sound = |access: &Access| access.block.index() < blocks && !access.leaves.is_empty();
    for launch in 0..program.launches().len() as u32 {
        assert!(program.accesses(Launch(launch)).iter().all(sound));
        assert!(!program.kernel_name(Launch(launch)).is_empty() || launch < u32::MAX);
        let _ = program.pointers(Launch(launch));
    }
    for step in program.steps() {
        match step {
            Step::Host(span) => assert!(program.host_accesses(*span).iter().all(sound)),
            Step::Free(_, span) | Step::Unuse(_, span) => {
                assert!(
                    program
                        .dead(*span)
                        .iter()
                        .all(|piece| piece.block.index() < blocks)
                );
            }
            Step::Launch(launch) => assert!(launch.index() < program.launches().len()),
            Step::Alloc(_) | Step::Use(_) | Step::Iteration(_) => {}
        }
    }
    for launches in program.iterations() {
        let _ = program.ideal(launches.clone());
    }
    let _ = program.ideal_steady();
}

#[test]
fn the_seeds_are_traces() {
    for text in SEEDS {
        let frame = zstd::stream::encode_all(text.as_bytes(), 1).unwrap();
        check(&read_from(frame.as_slice(), "seed").unwrap());
    }
}

#[test]
fn no_mutated_text_crashes_the_reader_and_what_it_accepts_is_sound() {
    let mut random = Random::new(3);
    let (mut accepted, mut refused) = (0, 0);
    for round in 0..6000 {
        let mut text = SEEDS[round % SEEDS.len()].as_bytes().to_vec();
        mutate(&mut text, &mut random);
        let frame = zstd::stream::encode_all(text.as_slice(), 1).unwrap();
        match read_from(frame.as_slice(), "mutated") {
            Ok(program) => {
                accepted += 1;
                check(&program);
            }
            Err(error) => {
                refused += 1;
                let message = error.to_string();
                assert!(message.starts_with("mutated:"), "{message}");
            }
        }
    }
    assert!(
        accepted > 100 && refused > 1000,
        "{accepted} accepted, {refused} refused"
    );
}

#[test]
fn no_mutated_frame_crashes_the_reader() {
    let mut random = Random::new(4);
    for round in 0..6000 {
        let text = SEEDS[round % SEEDS.len()].as_bytes();
        let mut frame = zstd::stream::encode_all(text, 1).unwrap();
        mutate(&mut frame, &mut random);
        if let Ok(program) = read_from(frame.as_slice(), "mutated") {
            check(&program);
        }
    }
}
