//! DeepUM's two kinds of tables: which kernel follows, and which fault follows.
//!
//! The execution-ID table keeps every context seen (paper section 4.2, figure 6); a block
//! table belongs to one execution ID (figure 7). Both are bounded here as a whole.

use std::sync::Arc;

use crate::Config;
use crate::hash::Map;

/// A kernel and the three before it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Context {
    /// Third, second and first before it.
    pub past: [u32; 3],
    /// The kernel.
    pub current: u32,
}

impl Context {
    pub(crate) fn first(exec: u32) -> Self {
        Self {
            past: [u32::MAX; 3],
            current: exec,
        }
    }

    /// The context when `next` comes after it.
    pub(crate) fn then(self, next: u32) -> Self {
        Self {
            past: [self.past[1], self.past[2], self.current],
            current: next,
        }
    }
}

#[derive(Debug)]
struct Way {
    tag: u64,
    /// Most recently used first.
    successors: Vec<u64>,
    used: u64,
}

/// The block table of one execution ID.
#[derive(Debug, Default)]
struct BlockTable {
    rows: Map<u64, Vec<Way>>,
    start: Option<u64>,
    end: Option<u64>,
    last: Option<u64>,
    /// All blocks in it, until it changes.
    blocks: Option<Arc<[u64]>>,
}

/// All tables.
#[derive(Debug)]
pub(crate) struct Tables {
    rows: u64,
    ways: usize,
    successors: usize,
    record_limit: usize,
    table_limit: usize,
    way_limit: usize,
    next: Map<Context, u32>,
    blocks: Map<u32, BlockTable>,
    ways_used: usize,
    clock: u64,
}

impl Tables {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            rows: config.deepum.rows as u64,
            ways: config.deepum.ways,
            successors: config.deepum.successors,
            record_limit: config.history_launches,
            table_limit: config.execution_ids,
            way_limit: config.blocks.saturating_mul(4),
            next: Map::default(),
            blocks: Map::default(),
            ways_used: 0,
            clock: 0,
        }
    }

    /// `exec` came after `context`.
    pub(crate) fn followed(&mut self, context: &Context, exec: u32) {
        if self.next.len() < self.record_limit || self.next.contains_key(context) {
            self.next.insert(*context, exec);
        }
    }

    /// What comes after `context`, if the same three came before it once.
    pub(crate) fn next(&self, context: &Context) -> Option<u32> {
        self.next.get(context).copied()
    }

    /// A kernel is over; the last block that faulted while it ran.
    pub(crate) fn ended(&mut self, exec: u32, last: Option<u64>) {
        if let Some(table) = self.blocks.get_mut(&exec)
            && last.is_some()
        {
            table.end = last;
        }
    }

    /// A block faulted while `exec` ran; `first`: the first one of this run.
    pub(crate) fn faulted(&mut self, exec: u32, block: u64, first: bool) {
        if self.blocks.len() >= self.table_limit && !self.blocks.contains_key(&exec) {
            return;
        }
        self.clock += 1;
        let table = self.blocks.entry(exec).or_default();
        if first {
            table.start = Some(block);
        }
        if let Some(last) = table.last
            && last != block
            && let Some(way) = table
                .rows
                .get_mut(&(last % self.rows))
                .and_then(|row| row.iter_mut().find(|way| way.tag == last))
        {
            way.successors.retain(|&successor| successor != block);
            way.successors.insert(0, block);
            way.successors.truncate(self.successors);
        }
        table.last = Some(block);
        table.blocks = None;
        let row = table.rows.entry(block % self.rows).or_default();
        if let Some(way) = row.iter_mut().find(|way| way.tag == block) {
            way.used = self.clock;
            return;
        }
        let fresh = Way {
            tag: block,
            successors: Vec::new(),
            used: self.clock,
        };
        if row.len() < self.ways && self.ways_used < self.way_limit {
            row.push(fresh);
            self.ways_used += 1;
        } else if let Some(oldest) = row.iter_mut().min_by_key(|way| way.used) {
            *oldest = fresh;
        }
    }

    /// Blocks that faulted after `block` while `exec` ran, newest first.
    pub(crate) fn successors(&self, exec: u32, block: u64) -> &[u64] {
        let row = self
            .blocks
            .get(&exec)
            .and_then(|table| table.rows.get(&(block % self.rows)));
        let way = row.and_then(|row| row.iter().find(|way| way.tag == block));
        way.map_or(&[], |way| &way.successors)
    }

    /// First fault of an execution ID, last time.
    pub(crate) fn start(&self, exec: u32) -> Option<u64> {
        self.blocks.get(&exec)?.start
    }

    /// Last fault of an execution ID, last time.
    pub(crate) fn end(&self, exec: u32) -> Option<u64> {
        self.blocks.get(&exec)?.end
    }

    /// All blocks in the table of an execution ID.
    pub(crate) fn blocks_of(&mut self, exec: u32) -> Arc<[u64]> {
        let Some(table) = self.blocks.get_mut(&exec) else {
            return Arc::from([]);
        };
        if let Some(blocks) = &table.blocks {
            return blocks.clone();
        }
        let mut blocks: Vec<u64> = table
            .rows
            .values()
            .flatten()
            .flat_map(|way| std::iter::once(way.tag).chain(way.successors.iter().copied()))
            .collect();
        blocks.sort_unstable();
        blocks.dedup();
        let blocks: Arc<[u64]> = Arc::from(blocks);
        table.blocks = Some(blocks.clone());
        blocks
    }

    /// Estimated size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let way = size_of::<Way>() + self.successors * 8;
        (self.ways_used * way + self.next.len() * 28 + self.blocks.len() * 96) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bytes, PolicyKind};

    fn tables(rows: usize, ways: usize, successors: usize) -> Tables {
        let mut config = Config::new(PolicyKind::Deepum, Bytes(1 << 30));
        config.deepum.rows = rows;
        config.deepum.ways = ways;
        config.deepum.successors = successors;
        Tables::new(&config)
    }

    #[test]
    fn the_next_kernel_needs_the_same_three_before() {
        // The paper's figure 6: entry 0 holds (7, 9, 92, 75).
        let mut tables = tables(16, 2, 4);
        let context = Context {
            past: [7, 9, 92],
            current: 0,
        };
        tables.followed(&context, 75);
        assert_eq!(tables.next(&context), Some(75));
        assert_eq!(
            tables.next(&Context {
                past: [8, 9, 92],
                current: 0
            }),
            None
        );
        tables.followed(&context, 76);
        assert_eq!(tables.next(&context), Some(76), "the newest wins");
    }

    #[test]
    fn successors_are_kept_newest_first_and_the_oldest_goes() {
        let mut tables = tables(16, 2, 2);
        for block in [1, 2, 1, 3, 1, 4] {
            tables.faulted(0, block, false);
        }
        assert_eq!(tables.successors(0, 1), [4, 3]);
        assert_eq!(tables.successors(0, 2), [1]);
        assert_eq!(
            tables.successors(1, 1),
            [0; 0],
            "tables belong to execution IDs"
        );
    }

    #[test]
    fn a_full_row_drops_its_least_recently_used_way() {
        let mut tables = tables(1, 2, 4);
        for block in [1, 2, 1, 3] {
            tables.faulted(0, block, false);
        }
        assert_eq!(
            *tables.blocks_of(0),
            [1, 2, 3],
            "2 is still a successor of 1"
        );
        assert_eq!(tables.successors(0, 2), [0; 0], "its own way went to 3");
    }

    #[test]
    fn start_and_end_are_the_first_and_last_fault_of_a_run() {
        let mut tables = tables(16, 2, 4);
        tables.faulted(0, 5, true);
        tables.faulted(0, 6, false);
        tables.ended(0, Some(6));
        assert_eq!((tables.start(0), tables.end(0)), (Some(5), Some(6)));
        tables.ended(0, None);
        assert_eq!(tables.end(0), Some(6), "a run without faults says nothing");
    }
}
