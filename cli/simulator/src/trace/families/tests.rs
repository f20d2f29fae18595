//! What generated programs promise.

use super::*;
use crate::trace::{Launch, Mode, Step};

fn shape(seed: u64, noise_percent: u32, partial: bool) -> Shape {
    Shape {
        seed,
        noise_percent,
        partial,
        ..Shape::default()
    }
}

#[test]
fn the_same_seed_gives_the_same_program_and_another_seed_another() {
    for family in Family::ALL {
        let text = |seed| {
            format!(
                "{:?}",
                family.program(&shape(seed, 50, true)).unwrap().steps()
            )
        };
        assert_eq!(text(1), text(1));
        let launches = |seed| {
            let program = family.program(&shape(seed, 50, true)).unwrap();
            format!("{:?}", program.launches())
        };
        assert_ne!(launches(1), launches(2), "{family:?}");
    }
}

#[test]
fn programs_are_about_as_large_as_asked() {
    for family in Family::ALL {
        for blocks in [16, 64, 1000] {
            let shape = Shape {
                blocks,
                launches: 30,
                ..Shape::default()
            };
            let program = family.program(&shape).unwrap();
            let footprint = program.footprint_bytes() / BLOCK_BYTES;
            let blocks = u64::from(blocks);
            assert!(
                (blocks / 2..=blocks + blocks / 4 + 2).contains(&footprint),
                "{family:?}: {footprint} blocks for {blocks}"
            );
            assert_eq!(program.iterations().len(), 6);
        }
    }
}

#[test]
fn only_shared_parts_make_partial_blocks() {
    for family in Family::ALL {
        let partial = |partial| {
            let program = family.program(&shape(0, 0, partial)).unwrap();
            (0..program.launches().len() as u32)
                .flat_map(|n| program.accesses(Launch(n)))
                .any(|access| access.leaves.count() < 32)
        };
        assert!(family == Family::Rows || !partial(false), "{family:?}");
    }
}

#[test]
fn activations_are_born_overwritten_and_die_in_stack_order() {
    let program = Family::Training.program(&Shape::default()).unwrap();
    let first = program.iterations()[2].start;
    let forward = program.accesses(Launch(first + 1));
    assert!(forward.iter().any(|access| access.mode == Mode::Overwrite));
    let (mut born, mut died) = (Vec::new(), Vec::new());
    for step in program
        .steps()
        .iter()
        .skip_while(|step| **step != Step::Iteration(5))
    {
        match step {
            Step::Use(region) => born.push(*region),
            Step::Unuse(region, dead) => {
                assert!(!program.dead(*dead).is_empty());
                died.push(*region);
            }
            _ => {}
        }
    }
    died.reverse();
    assert_eq!(born, died);
    assert!(!born.is_empty());
}
