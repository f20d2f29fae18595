//! Blocks in the order of their last use, kept by a policy for itself.

use crate::trace::Block;

const NONE: u32 = u32::MAX;

/// A list of blocks, least recently used first. Steps take constant time but the question
/// for the oldest, which passes over what is not good.
#[derive(Clone, Debug)]
pub(super) struct Recency {
    head: u32,
    tail: u32,
    links: Vec<Link>,
    /// Number of the launch that runs; its blocks are not offered.
    round: u32,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: u32,
    next: u32,
    listed: bool,
    round: u32,
}

impl Recency {
    /// Of a program with so many blocks; none is listed.
    pub fn new(blocks: usize) -> Self {
        let link = Link {
            prev: NONE,
            next: NONE,
            listed: false,
            round: 0,
        };
        Self {
            head: NONE,
            tail: NONE,
            links: vec![link; blocks],
            round: 0,
        }
    }

    /// A new launch begins: what is touched from here on is its own.
    pub fn begin(&mut self) {
        self.round += 1;
    }

    /// A block is used: it becomes the most recent.
    pub fn touch(&mut self, block: Block) {
        self.remove(block);
        self.insert(block);
        self.links[block.index()].round = self.round;
    }

    /// Lists a block as the most recent where it is not listed.
    pub fn insert(&mut self, block: Block) {
        let tail = self.tail;
        let link = &mut self.links[block.index()];
        if link.listed {
            return;
        }
        link.listed = true;
        link.prev = tail;
        link.next = NONE;
        self.tail = block.0;
        if tail == NONE {
            self.head = block.0;
        } else {
            self.links[tail as usize].next = block.0;
        }
    }

    /// Takes a block off the list.
    pub fn remove(&mut self, block: Block) {
        let link = &mut self.links[block.index()];
        if !link.listed {
            return;
        }
        link.listed = false;
        let (prev, next) = (link.prev, link.next);
        if prev == NONE {
            self.head = next;
        } else {
            self.links[prev as usize].next = next;
        }
        if next == NONE {
            self.tail = prev;
        } else {
            self.links[next as usize].prev = prev;
        }
    }

    /// The least recently used block that is not the running launch's and that is `good`.
    /// Those that are `gone` are taken off the list on the way.
    pub fn oldest(
        &mut self,
        good: impl Fn(Block) -> bool,
        gone: impl Fn(Block) -> bool,
    ) -> Option<Block> {
        let mut at = self.head;
        while at != NONE {
            let link = self.links[at as usize];
            if link.round == self.round {
                // Only blocks as recent as this one follow.
                return None;
            }
            if good(Block(at)) {
                return Some(Block(at));
            }
            if gone(Block(at)) {
                self.remove(Block(at));
            }
            at = link.next;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn oldest(recency: &mut Recency) -> Option<Block> {
        recency.oldest(|_| true, |_| false)
    }

    #[test]
    fn the_oldest_is_the_one_used_longest_ago() {
        let mut recency = Recency::new(4);
        for block in [2, 0, 1] {
            recency.begin();
            recency.touch(Block(block));
        }
        assert_eq!(oldest(&mut recency), Some(Block(2)));
        recency.begin();
        recency.touch(Block(2));
        assert_eq!(oldest(&mut recency), Some(Block(0)));
        let other = recency.oldest(|block| block != Block(0), |_| false);
        assert_eq!(other, Some(Block(1)));
        recency.oldest(|block| block != Block(0), |_| true);
        assert_eq!(oldest(&mut recency), Some(Block(1)));
    }

    #[test]
    fn what_the_running_launch_uses_is_not_offered() {
        let mut recency = Recency::new(2);
        recency.begin();
        recency.touch(Block(0));
        assert_eq!(oldest(&mut recency), None);
        recency.begin();
        assert_eq!(oldest(&mut recency), Some(Block(0)));
    }

    #[test]
    fn a_removed_block_is_not_offered_and_can_come_back_as_the_youngest() {
        let mut recency = Recency::new(3);
        for block in 0..3 {
            recency.begin();
            recency.touch(Block(block));
        }
        recency.begin();
        recency.remove(Block(0));
        recency.remove(Block(0));
        assert_eq!(oldest(&mut recency), Some(Block(1)));
        recency.insert(Block(0));
        recency.remove(Block(1));
        recency.remove(Block(2));
        assert_eq!(oldest(&mut recency), Some(Block(0)));
    }
}
