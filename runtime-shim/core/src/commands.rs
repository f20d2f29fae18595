//! Commands that go to the driver together.

use oversub_protocol::command::{CommandRecord, Operation};

use crate::BLOCK_BYTES;

/// Most ranges in one call to the driver.
pub const MAX_RANGES: usize = 64;

/// Ranges of one operation in one queue, neighbours merged.
#[derive(Debug)]
pub struct Batch {
    /// Whose queue.
    pub queue: u8,
    /// What to do.
    pub operation: Operation,
    addresses: [u64; MAX_RANGES],
    sizes: [usize; MAX_RANGES],
    count: usize,
}

impl Batch {
    /// With nothing in it.
    pub fn new(queue: u8, operation: Operation) -> Self {
        Self {
            queue,
            operation,
            addresses: [0; MAX_RANGES],
            sizes: [0; MAX_RANGES],
            count: 0,
        }
    }

    /// Adds the range of `command`; `false`: it belongs to another batch, or this is full.
    pub fn push(&mut self, command: &CommandRecord) -> bool {
        let (queue, operation) = (command.queue, command.operation);
        let Ok(bytes) = usize::try_from(command.bytes) else {
            return false;
        };
        if queue != self.queue || operation != self.operation {
            return false;
        }
        if let Some(last) = self.count.checked_sub(1)
            && self.addresses[last] + self.sizes[last] as u64 == command.address
        {
            self.sizes[last] += bytes;
            return true;
        }
        if self.count == MAX_RANGES {
            return false;
        }
        self.addresses[self.count] = command.address;
        self.sizes[self.count] = bytes;
        self.count += 1;
        true
    }

    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Nothing was added.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Start addresses, as the driver takes them.
    pub fn addresses(&mut self) -> &mut [u64] {
        &mut self.addresses[..self.count.min(MAX_RANGES)]
    }

    /// Sizes, as the driver takes them.
    pub fn sizes(&mut self) -> &mut [usize] {
        &mut self.sizes[..self.count.min(MAX_RANGES)]
    }

    /// The ranges.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, usize)> + '_ {
        self.addresses
            .iter()
            .copied()
            .zip(self.sizes.iter().copied())
            .take(self.count)
    }
}

/// Why a command is not even tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Invalid {
    /// Unknown operation or queue.
    Unknown,
    /// Not whole blocks, or none.
    Range,
}

/// Checks what can be checked without the tables.
///
/// # Errors
/// The command makes no sense.
pub fn check(command: &CommandRecord) -> Result<(), Invalid> {
    use oversub_protocol::command::queue;
    let expected = match command.operation {
        Operation::PREFETCH => queue::IN,
        Operation::EVICT => queue::OUT,
        Operation::DISCARD
        | Operation::POPULATE
        | Operation::USE_ON_HOST
        | Operation::LET_MIGRATE => queue::LOCAL,
        _ => return Err(Invalid::Unknown),
    };
    if command.queue != expected {
        return Err(Invalid::Unknown);
    }
    let whole =
        command.address.is_multiple_of(BLOCK_BYTES) && command.bytes.is_multiple_of(BLOCK_BYTES);
    let ends = command.address.checked_add(command.bytes).is_some();
    if whole && ends && command.bytes > 0 && command.address > 0 {
        Ok(())
    } else {
        Err(Invalid::Range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(operation: Operation, queue: u8, block: u64, blocks: u64) -> CommandRecord {
        CommandRecord {
            operation,
            queue,
            reserved: 0,
            id: 1,
            address: block * BLOCK_BYTES,
            bytes: blocks * BLOCK_BYTES,
            cause_ns: 0,
            reserved_words: [0; 3],
        }
    }

    #[test]
    fn neighbours_become_one_range() {
        let mut batch = Batch::new(0, Operation::PREFETCH);
        for block in [4, 5, 6, 9] {
            assert!(batch.push(&command(Operation::PREFETCH, 0, block, 1)));
        }
        let block = BLOCK_BYTES as usize;
        let ranges: Vec<_> = batch.ranges().collect();
        assert_eq!(
            ranges,
            [(4 * BLOCK_BYTES, 3 * block), (9 * BLOCK_BYTES, block)]
        );
    }

    #[test]
    fn another_operation_or_a_full_batch_needs_the_next_one() {
        let mut batch = Batch::new(0, Operation::PREFETCH);
        assert!(!batch.push(&command(Operation::EVICT, 1, 1, 1)));
        for block in 0..MAX_RANGES as u64 {
            assert!(batch.push(&command(Operation::PREFETCH, 0, 1 + 2 * block, 1)));
        }
        assert!(!batch.push(&command(Operation::PREFETCH, 0, 1000, 1)));
        assert_eq!(batch.len(), MAX_RANGES);
    }

    #[test]
    fn broken_commands_are_refused() {
        assert_eq!(check(&command(Operation::PREFETCH, 0, 1, 1)), Ok(()));
        assert_eq!(
            check(&command(Operation::PREFETCH, 1, 1, 1)),
            Err(Invalid::Unknown)
        );
        assert_eq!(
            check(&command(Operation(99), 0, 1, 1)),
            Err(Invalid::Unknown)
        );
        assert_eq!(
            check(&command(Operation::PREFETCH, 0, 1, 0)),
            Err(Invalid::Range)
        );
        let odd = CommandRecord {
            address: 4096,
            ..command(Operation::PREFETCH, 0, 1, 1)
        };
        assert_eq!(check(&odd), Err(Invalid::Range));
        let wraps = CommandRecord {
            address: u64::MAX - BLOCK_BYTES + 1,
            ..command(Operation::PREFETCH, 0, 1, 1)
        };
        assert_eq!(check(&wraps), Err(Invalid::Range));
    }
}
