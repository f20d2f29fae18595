//! Orders blocks by next use: what to evict last, what to fetch first.
//!
//! Owns the keys and keeps them true at logarithmic cost per changed block.

use crate::policy::ranking::Ranking;
use crate::world::block::Residency;
use crate::world::{NEVER, World};

/// Keys of blocks whose next use is unknown begin here; among them the least recently used
/// is the greatest.
const UNKNOWN: u64 = 1 << 61;
/// Keys of dead blocks begin here; among them the one to be born again last is the greatest.
const DEAD: u64 = 1 << 62;
/// No position gets here.
const POSITIONS: u64 = 1 << 60;
/// Overdue keys looked at in one go.
const OVERDUE: usize = 1024;

/// The rankings.
#[derive(Debug, Default)]
pub(crate) struct Ranks {
    /// Blocks on the device: the last one is the next victim.
    pub resident: Ranking,
    /// Blocks with a known use that are not there: the first one is the next to fetch. Last
    /// those that launches access on the host, though nothing foretells when again.
    pub absent: Ranking,
    /// Dead blocks without a frame that are to be born again: they will need one.
    pub unborn: Ranking,
    /// Dead blocks whose content still lies on the host.
    pub stale: Ranking,
    lag: Option<u64>,
    launches: u64,
}

/// Whether a key says when the block is used next.
pub(crate) fn is_known(key: u64) -> bool {
    key < UNKNOWN
}

/// Whether a victim's key says that its content is dead.
pub(crate) fn is_dead(key: u64) -> bool {
    key >= DEAD
}

impl Ranks {
    /// Takes in all that changed.
    pub(crate) fn refresh(&mut self, world: &mut World) {
        let lag = world.history.lag();
        if lag != self.lag {
            // All predictions moved. Doing that again and again must cost no more than
            // the launches between do.
            let head = world.history.head();
            let settled = world.history.held() >= 2 || lag.is_none();
            if settled && (head - self.launches) * 64 >= world.blocks.len() as u64 {
                self.lag = lag;
                self.launches = head;
                world.blocks.mark_all();
            }
        }
        while let Some(slot) = world.blocks.next_changed() {
            self.rank(world, slot);
        }
        world.blocks.recycle();
        let floor = world.floor();
        for _ in 0..OVERDUE {
            let overdue = [
                self.resident.first(),
                self.absent.first(),
                self.unborn.first(),
            ];
            let Some((_, slot)) = overdue.into_iter().flatten().find(|&(key, _)| key < floor)
            else {
                break;
            };
            self.rank(world, slot);
        }
    }

    /// Gives a block its place.
    pub(crate) fn rank(&mut self, world: &World, slot: u32) {
        let block = world.blocks.get(slot);
        let (mut resident, mut absent, mut unborn, mut stale) = (None, None, None, None);
        if !block.gone {
            let next = world.next_use(slot);
            match block.residency {
                Residency::Device if block.refused => {}
                Residency::Device if block.dead() => resident = Some(DEAD + next.min(POSITIONS)),
                Residency::Device if next == NEVER => {
                    resident = Some(UNKNOWN + POSITIONS - block.last_used.min(POSITIONS));
                }
                Residency::Device => resident = Some(next.min(POSITIONS)),
                Residency::Host if block.dead() => stale = (!block.refused).then_some(next),
                Residency::Host if next == NEVER && block.mapped && !block.refused => {
                    absent = Some(UNKNOWN + POSITIONS - block.last_used.min(POSITIONS));
                }
                Residency::Host | Residency::Unpopulated if next == NEVER || block.refused => {}
                Residency::Unpopulated if block.dead() => unborn = Some(next.min(POSITIONS)),
                Residency::Host | Residency::Unpopulated => absent = Some(next.min(POSITIONS)),
                Residency::MovingIn | Residency::MovingOut => {}
            }
        }
        self.resident.set(slot, resident);
        self.absent.set(slot, absent);
        self.unborn.set(slot, unborn);
        self.stale.set(slot, stale);
    }

    /// Estimated size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.resident.bytes() + self.absent.bytes() + self.unborn.bytes() + self.stale.bytes()
    }
}
