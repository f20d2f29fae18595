//! The walk from a fault through the block tables and on to the next kernels
//! (paper section 4.2, "chaining").

use std::collections::VecDeque;

use crate::hash::Map;

use super::tables::{Context, Tables};

/// A walk under way.
#[derive(Debug)]
pub(crate) struct Chain {
    context: Context,
    frontier: VecDeque<u64>,
    visited: Map<u64, ()>,
    /// Kernels between what runs and where the walk is.
    ahead: usize,
}

impl Chain {
    /// Begins at the block that faulted while `context`'s kernel ran.
    pub(crate) fn new(context: Context, block: u64) -> Self {
        let (frontier, visited) = ([block].into(), [(block, ())].into_iter().collect());
        Self {
            context,
            frontier,
            visited,
            ahead: 0,
        }
    }

    /// The next kernel runs: the walk may go one further.
    pub(crate) fn kernel_began(&mut self) {
        self.ahead = self.ahead.saturating_sub(1);
    }

    /// Goes one step and puts blocks to prefetch into `waiting`. False: it pauses or is at
    /// its end.
    pub(crate) fn step(
        &mut self,
        tables: &Tables,
        lookahead: usize,
        waiting: &mut VecDeque<u64>,
    ) -> bool {
        let exec = self.context.current;
        if let Some(block) = self.frontier.pop_front() {
            for &successor in tables.successors(exec, block) {
                if self.visited.insert(successor, ()).is_none() {
                    waiting.push_back(successor);
                    if tables.end(exec) != Some(successor) {
                        self.frontier.push_back(successor);
                    }
                }
            }
            return true;
        }
        if self.ahead >= lookahead {
            return false;
        }
        let Some(next) = tables.next(&self.context) else {
            return false;
        };
        self.context = self.context.then(next);
        self.ahead += 1;
        self.visited.clear();
        if let Some(start) = tables.start(next) {
            self.visited.insert(start, ());
            waiting.push_back(start);
            self.frontier.push_back(start);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bytes, Config, PolicyKind};

    /// Two kernels in turn: 0 faults on 10, 11, 12 and 1 on 20, 21.
    fn learned() -> (Tables, Context) {
        let mut tables = Tables::new(&Config::new(PolicyKind::Deepum, Bytes(1 << 30)));
        let mut context = Context::first(0);
        for turn in 0..8 {
            let blocks: &[u64] = if turn % 2 == 0 {
                &[10, 11, 12]
            } else {
                &[20, 21]
            };
            for (index, &block) in blocks.iter().enumerate() {
                tables.faulted(context.current, block, index == 0);
            }
            tables.ended(context.current, blocks.last().copied());
            let next = 1 - context.current;
            tables.followed(&context, next);
            context = context.then(next);
        }
        (tables, context)
    }

    #[test]
    fn a_fault_brings_the_rest_of_its_kernel_and_the_next_ones() {
        let (tables, context) = learned();
        let (mut chain, mut waiting) = (Chain::new(context, 10), VecDeque::new());
        while chain.step(&tables, 2, &mut waiting) {}
        assert_eq!(waiting, [11, 12, 20, 21, 10, 11, 12]);
    }

    #[test]
    fn it_pauses_at_its_look_ahead_and_resumes_when_a_kernel_ends() {
        let (tables, context) = learned();
        let (mut chain, mut waiting) = (Chain::new(context, 10), VecDeque::new());
        while chain.step(&tables, 1, &mut waiting) {}
        assert_eq!(waiting, [11, 12, 20, 21]);
        chain.kernel_began();
        while chain.step(&tables, 1, &mut waiting) {}
        assert_eq!(waiting, [11, 12, 20, 21, 10, 11, 12]);
    }

    #[test]
    fn it_ends_where_no_kernel_is_predicted() {
        let (tables, _) = learned();
        let unknown = Context {
            past: [9, 9, 9],
            current: 0,
        };
        let (mut chain, mut waiting) = (Chain::new(unknown, 10), VecDeque::new());
        while chain.step(&tables, 32, &mut waiting) {}
        assert_eq!(waiting, [11, 12]);
    }
}
