//! The state of every block, and the driver's lists of frames.
//!
//! A frame is one 2 MiB root chunk of device memory; a block with anything on the device,
//! or on the way to or from it, holds one. Frames in use stand in the order of their last
//! migration, as in nvidia-uvm (`uvm_pmm_gpu.c`, 580: `root_chunks.va_block_used`), and
//! those whose content was dropped in a list of their own that is taken first.

use crate::trace::Block;
use crate::units::Leaves;

const NONE: u32 = u32::MAX;

/// Whether and how a block holds a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) enum Frame {
    /// It holds none.
    #[default]
    None,
    /// A transfer to the device is under way into it.
    Incoming,
    /// It is in use.
    Held,
    /// A transfer to the host is under way out of it.
    Outgoing,
}

/// Which list a held frame is in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) enum ListName {
    /// None.
    #[default]
    None,
    /// In use, least recently migrated first.
    Used,
    /// Its content was dropped.
    Discarded,
}

/// One block.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BlockState {
    /// Managed memory exists there.
    pub allocated: bool,
    /// Parts that have pages somewhere.
    pub populated: Leaves,
    /// Parts that have pages on the device and are mapped there.
    pub device: Leaves,
    /// Parts whose content the program may still read.
    pub alive: Leaves,
    /// Parts whose content was dropped although alive: reading them is an error.
    pub lost: Leaves,
    /// Parts under way.
    pub moving: Leaves,
    /// Its frame.
    pub frame: Frame,
    /// Its frame's list.
    pub list: ListName,
    /// Being served: not to be taken from under the kernel.
    pub locked: bool,
    /// A prefetch of it waits in the queue.
    pub queued_in: bool,
    /// An eviction of it waits in the queue.
    pub queued_out: bool,
    /// Launches use on the host what lies there of it.
    pub stays: bool,
    /// Its evicted content lies on the SSD.
    pub on_ssd: bool,
    /// Prefetched bytes that no launch has used yet.
    pub unused: u32,
    prev: u32,
    next: u32,
}

impl BlockState {
    /// Parts with content that is not on the device and not on the way.
    pub fn on_host(&self) -> Leaves {
        self.populated.minus(self.device).minus(self.moving)
    }

    /// What these parts take of the host's memory: none where their content lies on the SSD.
    pub fn host_bytes(&self, leaves: Leaves) -> u64 {
        if self.on_ssd {
            0
        } else {
            (leaves & self.on_host()).bytes()
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl List {
    const EMPTY: List = List {
        head: NONE,
        tail: NONE,
        len: 0,
    };
}

/// All blocks and frames.
#[derive(Debug)]
pub(super) struct Blocks {
    states: Vec<BlockState>,
    used: List,
    discarded: List,
    capacity: u32,
    taken: u32,
}

impl Blocks {
    pub fn new(blocks: usize, capacity: u32) -> Self {
        let state = BlockState {
            prev: NONE,
            next: NONE,
            ..BlockState::default()
        };
        Self {
            states: vec![state; blocks],
            used: List::EMPTY,
            discarded: List::EMPTY,
            capacity,
            taken: 0,
        }
    }

    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Frames that nobody holds.
    pub fn free(&self) -> u32 {
        self.capacity - self.taken
    }

    /// Frames whose content was dropped.
    pub fn discarded(&self) -> u32 {
        self.discarded.len
    }

    /// Frames held.
    pub fn taken(&self) -> u32 {
        self.taken
    }

    pub fn get(&self, block: Block) -> &BlockState {
        &self.states[block.index()]
    }

    pub fn get_mut(&mut self, block: Block) -> &mut BlockState {
        &mut self.states[block.index()]
    }

    /// Gives a block a frame for a transfer, where one is free; else one whose content was
    /// dropped is taken from its block.
    pub fn take_frame(&mut self, block: Block) -> bool {
        if self.free() == 0 {
            let head = self.discarded.head;
            if head == NONE {
                return false;
            }
            self.release(Block(head));
        }
        self.taken += 1;
        self.states[block.index()].frame = Frame::Incoming;
        true
    }

    /// The block's frame is in use from now on, most recently migrated.
    pub fn hold(&mut self, block: Block) {
        self.unlink(block);
        self.states[block.index()].frame = Frame::Held;
        self.link(block, ListName::Used);
    }

    /// The block's content on the device is gone; its frame can be taken.
    pub fn discard(&mut self, block: Block) {
        self.unlink(block);
        self.link(block, ListName::Discarded);
    }

    /// A transfer out of the block's frame begins.
    pub fn leave(&mut self, block: Block) {
        self.unlink(block);
        self.states[block.index()].frame = Frame::Outgoing;
    }

    /// The block holds no frame any more.
    pub fn release(&mut self, block: Block) {
        self.unlink(block);
        let state = &mut self.states[block.index()];
        if state.frame != Frame::None {
            state.frame = Frame::None;
            self.taken -= 1;
        }
    }

    /// The least recently migrated block that may be evicted.
    pub fn oldest(&self) -> Option<Block> {
        self.in_order().find(|block| {
            let state = self.get(*block);
            !state.locked && state.moving.is_empty()
        })
    }

    /// Blocks whose frames are in use, least recently migrated first.
    pub fn in_order(&self) -> impl Iterator<Item = Block> + '_ {
        let mut at = self.used.head;
        std::iter::from_fn(move || {
            let block = (at != NONE).then_some(Block(at))?;
            at = self.states[block.index()].next;
            Some(block)
        })
    }

    fn list(&mut self, name: ListName) -> Option<&mut List> {
        match name {
            ListName::None => None,
            ListName::Used => Some(&mut self.used),
            ListName::Discarded => Some(&mut self.discarded),
        }
    }

    fn unlink(&mut self, block: Block) {
        let state = &mut self.states[block.index()];
        let (name, prev, next) = (state.list, state.prev, state.next);
        state.list = ListName::None;
        state.prev = NONE;
        state.next = NONE;
        let Some(list) = self.list(name) else {
            return;
        };
        list.len -= 1;
        if prev == NONE {
            list.head = next;
        }
        if next == NONE {
            list.tail = prev;
        }
        if prev != NONE {
            self.states[prev as usize].next = next;
        }
        if next != NONE {
            self.states[next as usize].prev = prev;
        }
    }

    fn link(&mut self, block: Block, name: ListName) {
        let Some(list) = self.list(name) else {
            return;
        };
        let tail = list.tail;
        list.tail = block.0;
        list.len += 1;
        if tail == NONE {
            list.head = block.0;
        } else {
            self.states[tail as usize].next = block.0;
        }
        let state = &mut self.states[block.index()];
        state.prev = tail;
        state.list = name;
    }
}
