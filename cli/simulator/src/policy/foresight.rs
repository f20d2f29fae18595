//! oversub's own policy: the engine that runs live (`oversub-engine`, `policy/foresight`).
//!
//! Sees the launch stream, faults, and, with lifetimes on, what the allocator hands out
//! and takes back.

use oversub_engine::PolicyKind;

use super::steering::Steering;
use super::{Entry, Make};

pub(super) const ENTRY: Entry = Entry {
    name: "foresight",
    about: "oversub's own, the very engine that runs live: learned next uses, planned eviction",
    make: Make::Lifetime(|machine| Box::new(Steering::new(machine, PolicyKind::Foresight))),
};

#[cfg(test)]
mod tests {
    use super::super::checks::{self, blocks_in};
    use super::super::samples::{BASE, blocks, launch};
    use super::ENTRY;
    use crate::machine::{self, Machine};
    use crate::trace::{LaunchSpec, ProgramBuilder};
    use crate::units::{BLOCK_BYTES, Nanos};

    #[test]
    fn what_the_program_manages_itself_comes_when_it_is_needed_and_not_at_its_allocation() {
        let mut builder = ProgramBuilder::new("managed");
        let unused = blocks(2, 14);
        builder.alloc(BASE, 2 * BLOCK_BYTES).unwrap();
        builder.alloc(unused.address, unused.bytes).unwrap();
        builder.host(&[], &[blocks(0, 16)]).unwrap();
        builder.iteration(0).unwrap();
        // As long as all of it would take over the link, and longer.
        let time = Nanos::from_micros(10_000);
        launch(&mut builder, "read", time, &[blocks(0, 2)], &[]);
        let outcome = checks::outcome(&builder.finish(), &ENTRY, 32);
        assert_eq!(blocks_in(&outcome.first().totals), 2);
    }

    #[test]
    fn a_host_that_waits_is_handed_out_less_that_could_not_be_dropped() {
        const WEIGHTS: u64 = 50;
        const SCRATCH: u64 = 30;
        let mut builder = ProgramBuilder::new("scratch");
        let all = blocks(0, WEIGHTS + SCRATCH);
        let (weights, scratch) = (blocks(0, WEIGHTS), blocks(WEIGHTS, SCRATCH));
        builder.alloc(all.address, all.bytes).unwrap();
        builder.use_(weights.address, weights.bytes).unwrap();
        // The host is done with these long before the device is.
        for iteration in 0..40 {
            builder.iteration(iteration).unwrap();
            builder.use_(scratch.address, scratch.bytes).unwrap();
            let time = Nanos::from_micros(2_000);
            for part in 0..SCRATCH {
                let part = blocks(WEIGHTS + part, 1);
                launch(&mut builder, "write", time, &[], &[part]);
            }
            builder.unuse(scratch.address).unwrap();
            for part in 0..WEIGHTS {
                launch(&mut builder, "read", time, &[blocks(part, 1)], &[]);
            }
        }
        // By the thirteenth turn the device has come to what was launched before the host waited.
        let outcome = checks::outcome(&builder.finish(), &ENTRY, 64);
        let [early, late] = [8, 30].map(|turn| blocks_in(&outcome.iterations[turn].totals));
        assert!(3 * late <= 2 * early, "{late} blocks, {early} before");
    }

    /// Where all comes in time, nothing that a launch leaves alone is ever away when it runs.
    #[test]
    fn a_table_of_which_few_rows_are_used_makes_room_for_the_rest() {
        const TABLE: u64 = 64;
        const WEIGHTS: u64 = 180;
        let mut builder = ProgramBuilder::new("rows");
        let parts = [(0, TABLE), (TABLE, WEIGHTS), (TABLE + WEIGHTS, 1)];
        let [table, _, state] = parts.map(|(first, count)| blocks(first, count));
        for (first, count) in parts {
            let part = blocks(first, count);
            builder.alloc(part.address, part.bytes).unwrap();
            builder.use_(part.address, part.bytes).unwrap();
            builder.host(&[], &[part]).unwrap();
        }
        let time = Nanos::from_micros(10_000);
        launch(&mut builder, "load", time, &[], &[table]);
        for iteration in 0..30 {
            builder.iteration(iteration).unwrap();
            let mut rows = [0, 21, 42].map(|first| (first + iteration * 5) % TABLE);
            rows.sort_unstable();
            let (rows, written) = (rows.map(|row| blocks(row, 1)), [state]);
            let spec = LaunchSpec {
                sync: true,
                pointers: Some(&[table.address, state.address]),
                ..LaunchSpec::kernel("embed", time, &rows, &written)
            };
            builder.launch(spec).unwrap();
            for layer in 0..6 {
                let layer = blocks(TABLE + layer * WEIGHTS / 6, WEIGHTS / 6);
                launch(&mut builder, "project", time, &[layer, state], &[state]);
            }
        }
        // All but a quarter of the table has room.
        let frames = TABLE * 3 / 4 + WEIGHTS + 1;
        let outcome = checks::outcome(&builder.finish(), &ENTRY, frames as u32);
        let late = outcome.iterations[20..].iter();
        let moved: u64 = late.map(|iteration| blocks_in(&iteration.totals)).sum();
        assert!(moved <= 40, "{moved} blocks in ten iterations");
    }

    /// PyTorch's optimizers cut a large tensor so (`multi_tensor_apply`).
    #[test]
    fn an_argument_of_which_each_launch_uses_a_slice_is_fetched_in_time() {
        const STATE: u64 = 32;
        const WEIGHTS: u64 = 84;
        let mut builder = ProgramBuilder::new("slices");
        let all = blocks(0, STATE + WEIGHTS);
        builder.alloc(all.address, all.bytes).unwrap();
        let state = blocks(0, STATE);
        builder.use_(state.address, state.bytes).unwrap();
        for part in 0..WEIGHTS {
            let weights = blocks(STATE + part, 1);
            builder.use_(weights.address, weights.bytes).unwrap();
        }
        for iteration in 0..16 {
            builder.iteration(iteration).unwrap();
            for part in 0..WEIGHTS {
                let weights = [blocks(STATE + part, 1)];
                let time = Nanos::from_micros(1_000);
                launch(&mut builder, "forward", time, &weights, &weights);
            }
            for slice in 0..4 {
                let used = [blocks(slice * STATE / 4, STATE / 4)];
                let time = Nanos::from_micros(1_000);
                let spec = LaunchSpec {
                    signature: slice + 1,
                    pointers: Some(&[state.address]),
                    ..LaunchSpec::kernel("optimizer", time, &used, &used)
                };
                builder.launch(spec).unwrap();
            }
        }
        // The link brings what has no room in a tenth of the time.
        let outcome = checks::outcome(&builder.finish(), &ENTRY, 80);
        let late = outcome.iterations[2..].iter();
        let faults: u64 = late.map(|iteration| iteration.totals.faults).sum();
        assert!(faults < 8 * 32, "{faults} faults");
    }

    #[test]
    fn a_kernel_that_uses_more_than_the_device_has_takes_the_place_of_what_it_has_gone_past() {
        const ARRAY: u64 = 400;
        let mut builder = ProgramBuilder::new("passes");
        let arrays = [0, ARRAY, 2 * ARRAY].map(|first| blocks(first, ARRAY));
        builder.alloc(BASE, 3 * ARRAY * BLOCK_BYTES).unwrap();
        for array in arrays {
            builder.use_(array.address, array.bytes).unwrap();
        }
        let time = Nanos::from_micros(10);
        for iteration in 0..10 {
            builder.iteration(iteration).unwrap();
            launch(&mut builder, "couple", time, &arrays, &arrays);
        }
        let outcome = checks::outcome(&builder.finish(), &ENTRY, 800);
        let late = blocks_in(&outcome.iterations[8].totals);
        // 400 blocks have no room, and a few are reserved.
        assert!(late <= 465, "{late} blocks");
    }

    #[test]
    fn what_no_argument_reaches_takes_no_room() {
        const PART: u64 = 100;
        let mut builder = ProgramBuilder::new("arena");
        // The program cuts up one allocation by itself, and never uses the third part.
        let parts = [0, 1, 2, 3, 4].map(|part| blocks(part * PART, PART));
        let [first, second, _, fourth, fifth] = parts;
        builder.alloc(BASE, 5 * PART * BLOCK_BYTES).unwrap();
        builder.host(&[], &parts).unwrap();
        let time = Nanos::from_micros(1_000);
        for iteration in 0..9 {
            builder.iteration(iteration).unwrap();
            launch(&mut builder, "count", time, &[first], &[]);
            launch(&mut builder, "move", time, &[second], &[fourth]);
            let all = [second, fourth, fifth];
            launch(&mut builder, "combine", time, &all, &[fifth]);
        }
        let outcome = checks::outcome(&builder.finish(), &ENTRY, 485);
        let late = outcome.iterations[1..].iter();
        let late: u64 = late.map(|iteration| blocks_in(&iteration.totals)).sum();
        assert_eq!(late, 0, "all that is used fits");
    }

    /// Under the artifact's rules a page that is written first is charged for as one from the host,
    /// unless it was queued; a frame of what has just died is not free any sooner.
    #[test]
    fn what_a_launch_is_first_to_write_is_queued_for_it_under_the_artifacts_rules() {
        const PART: u64 = 40;
        let mut builder = ProgramBuilder::new("turns");
        builder.alloc(BASE, 4 * PART * BLOCK_BYTES).unwrap();
        let time = Nanos::from_micros(20_000);
        builder.iteration(0).unwrap();
        for (part, name) in ["write", "memset", "write", "memset"].iter().enumerate() {
            let part = blocks(part as u64 * PART, PART);
            builder.use_(part.address, part.bytes).unwrap();
            launch(&mut builder, name, time, &[], &[part]);
            builder.unuse(part.address).unwrap();
        }
        let machine = Machine {
            memory_bytes: 64 * BLOCK_BYTES,
            ..machine::named("g10").unwrap()
        };
        let outcome = checks::of(&builder.finish(), &ENTRY, &machine, true);
        let totals = &outcome.first().totals;
        // One of the four over the link would take 5.3 ms.
        assert!(totals.stall < Nanos::from_micros(1_000), "{totals:?}");
    }
}
