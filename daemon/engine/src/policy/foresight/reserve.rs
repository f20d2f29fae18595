//! How many frames are kept free for faults.
//!
//! A fault that finds no free frame waits for an eviction. A reserve gives evictions a start. But a
//! frame that lies idle is a block less on the device, which has to leave and be fetched in each
//! cycle. So the reserve is small: what is known to be born is evicted for ahead, whatever the
//! reserve. With 32 frames, recorded programs take longer in the mean, also where commands take a
//! millisecond to come.

use crate::policy::demand::budget_reserve;
use crate::world::World;

/// One in so many frames of the device is kept free, within these bounds.
const SHARE: u64 = 64;
const LEAST: u64 = 2;
const MOST: u64 = 8;

/// Frames that are kept free for faults; none where everything fits, or what is used did so
/// far: there is more memory, but nothing says that more of it is used.
pub(crate) fn frames(world: &World) -> i64 {
    let fits = world.blocks.len() as u64 <= world.capacity;
    if fits || !(world.was_full || world.enforce || world.remote) {
        0
    } else if world.remote {
        // Nothing comes but what is fetched.
        1
    } else if world.enforce {
        budget_reserve(world.capacity)
    } else {
        (world.capacity / SHARE).clamp(LEAST, MOST) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{BLOCK_BYTES, Range};
    use crate::world::block::Residency;
    use crate::{Bytes, Config, PolicyKind};

    fn world(device_blocks: u64, blocks: u64) -> World {
        let config = Config::new(PolicyKind::Foresight, Bytes(device_blocks * BLOCK_BYTES));
        let mut world = World::new(&config);
        let range = Range {
            address: BLOCK_BYTES,
            bytes: blocks * BLOCK_BYTES,
        };
        let stats = &mut Default::default();
        world.alloc(range, false, Residency::Unpopulated, stats);
        world
    }

    #[test]
    fn a_share_of_the_device_is_kept_free_once_it_was_full() {
        for (device, kept) in [(64, 2), (256, 4), (512, 8), (20_000, 8)] {
            let mut world = world(device, device + 1);
            assert_eq!(frames(&world), 0, "it was not full yet");
            world.was_full = true;
            assert_eq!(frames(&world), kept, "of {device} frames");
        }
    }

    #[test]
    fn nothing_is_kept_free_where_everything_fits() {
        let mut world = world(64, 64);
        world.was_full = true;
        assert_eq!(frames(&world), 0);
    }
}
