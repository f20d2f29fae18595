//! Which blocks to fetch next, and into whose room.

use super::{
    AHEAD, BLOCK_BYTES, BlockId, Command, FaultEngine, IN_USE, OTHERS, Operation, Place, Queue,
    RECENT, Range, SCAN, SPARSE, index,
};

impl FaultEngine {
    /// Appends what is to be done now. A prefetch is asked for only once there is room for
    /// it, so that the driver, which would evict what came first, need not choose.
    pub fn decide(&mut self, commands: &mut Vec<Command>) {
        let (Some(capacity), Some(cursor)) = (self.blocks.capacity(), self.history.cursor()) else {
            return;
        };
        if !self.trust.steers() {
            return;
        }
        self.frontier = self.frontier.max(cursor + 1);
        self.lookahead = self.lookahead.clamp(AHEAD.0, self.most_ahead());
        for _ in 0..SCAN {
            let Some(block) = self.history.at(self.frontier) else {
                return;
            };
            let wanted = self.lookahead.saturating_sub(self.ahead.len()) as u64;
            if wanted == 0 {
                return;
            }
            let left_alone = self.blocks.get(block).is_none_or(|found| found.barred);
            match self.blocks.place(block) {
                Place::Going => return,
                Place::Host if !left_alone => {
                    if self.blocks.occupied() < capacity {
                        self.fetch(block, commands);
                    } else if !self.make_room(wanted, commands) {
                        return;
                    } else {
                        continue;
                    }
                }
                _ => {}
            }
            self.frontier += 1;
        }
    }

    fn fetch(&mut self, block: BlockId, commands: &mut Vec<Command>) {
        self.issued += 1;
        let sparse = self.lookahead >= SPARSE && self.issued.is_multiple_of(2);
        let page_bytes = self.config.page_bytes;
        let Some(found) = self.blocks.get_mut(block) else {
            return;
        };
        (found.unused, found.page_left) = (true, !sparse);
        let page = found.page.min(BLOCK_BYTES - page_bytes);
        self.blocks.put(block, Place::Coming);
        self.ahead.push_back((self.frontier, block));
        let (start, end) = (block.address(), block.address() + BLOCK_BYTES);
        let parts = if sparse {
            [(start, end), (end, end)]
        } else {
            [(start, start + page), (start + page + page_bytes, end)]
        };
        for (from, to) in parts {
            let bytes = to - from;
            if bytes > 0 {
                let range = Range {
                    address: from,
                    bytes,
                };
                self.stats.prefetched_bytes += bytes;
                self.ask(Queue::In, Operation::Prefetch, block, range, commands);
            }
        }
    }

    /// Evicts one more block where fewer are on their way than are wanted; `false`: the
    /// prefetch must wait, or is not worth any block that is there.
    fn make_room(&mut self, wanted: u64, commands: &mut Vec<Command>) -> bool {
        if self.blocks.going() >= wanted {
            return false;
        }
        let Some(victim) = self.victim() else {
            return false;
        };
        self.blocks.put(victim, Place::Going);
        self.stats.evicted_bytes += BLOCK_BYTES;
        let range = Range {
            address: victim.address(),
            bytes: BLOCK_BYTES,
        };
        self.ask(Queue::Out, Operation::Evict, victim, range, commands);
        true
    }

    /// The block whose next use is farthest, and farther than that of the block to come. In
    /// a round that is one of those used last.
    fn victim(&mut self) -> Option<BlockId> {
        let end = self.history.end();
        let in_use = end.saturating_sub(IN_USE);
        let recent = (in_use.saturating_sub(RECENT)..in_use).rev();
        let recent = recent.filter_map(|position| self.history.at(position));
        let others = self.blocks.around(self.others, OTHERS);
        let now = [end.wrapping_sub(1), end.wrapping_sub(IN_USE)];
        let now = now.map(|position| self.history.at(position));
        let awaited = |block: &BlockId| self.ahead.iter().any(|(_, ahead)| ahead == block);
        let fit = |block: &BlockId| {
            let found = self.blocks.get(*block);
            let movable = found.is_some_and(|found| found.place == Place::Device && !found.barred);
            movable && !now.contains(&Some(*block)) && !awaited(block)
        };
        let next = |block: BlockId| self.history.next_use(block).unwrap_or(u64::MAX);
        let best = recent
            .chain(others)
            .filter(fit)
            .map(|block| (next(block), block))
            // Of equals the first: the one used last.
            .reduce(|best, other| if other.0 > best.0 { other } else { best });
        self.others = self.others.wrapping_add(OTHERS);
        best.filter(|(next, _)| *next > self.frontier)
            .map(|(_, block)| block)
    }

    fn ask(
        &mut self,
        queue: Queue,
        operation: Operation,
        block: BlockId,
        range: Range,
        commands: &mut Vec<Command>,
    ) {
        let Some(index) = index(queue) else { return };
        let id = self.last_ids[index].wrapping_add(1);
        self.last_ids[index] = id;
        self.under_way[index].push_back((id, block));
        commands.push(Command {
            queue,
            id,
            operation,
            range,
        });
    }
}
