//! Commands that wait for the driver, and which of them go to it in one call.

use oversub_protocol::command::{CommandRecord, Operation};

use crate::BLOCK_BYTES;

/// Most commands that wait in a queue.
pub const MAX_WAITING: usize = 64;
/// Most bytes that are put together for one call, 8 MiB: longer calls are hardly faster where
/// they go over several streams, and what comes behind one has to wait for it.
pub const PIECE_BYTES: u64 = PIECE_COMMANDS as u64 * BLOCK_BYTES;
/// Most commands in one call.
pub const PIECE_COMMANDS: usize = 4;

const NOTHING: CommandRecord = CommandRecord {
    operation: Operation(0),
    queue: 0,
    reserved: 0,
    id: 0,
    address: 0,
    bytes: 0,
    cause_ns: 0,
    reserved_words: [0; 3],
};

/// The commands of one queue that the driver was not given yet, in order.
#[derive(Debug)]
pub struct Line {
    commands: [CommandRecord; MAX_WAITING],
    /// Where the oldest is.
    first: usize,
    count: usize,
}

impl Line {
    /// With nothing in it.
    pub const fn new() -> Self {
        Self {
            commands: [NOTHING; MAX_WAITING],
            first: 0,
            count: 0,
        }
    }

    /// Nothing waits.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Nothing more can wait.
    pub fn is_full(&self) -> bool {
        self.count == MAX_WAITING
    }

    /// Puts a command behind the others. `false`: there is no room.
    pub fn push(&mut self, command: &CommandRecord) -> bool {
        if self.is_full() {
            return false;
        }
        self.commands[(self.first + self.count) % MAX_WAITING] = *command;
        self.count += 1;
        true
    }

    /// Takes the oldest command, and those behind it that go with it in one call: of the same
    /// operation, each where the one before it ends, [`PIECE_BYTES`] at most.
    pub fn take_piece(&mut self) -> Option<Piece> {
        let mut piece = Piece::new(self.oldest()?);
        self.drop_oldest();
        while let Some(next) = self.oldest() {
            if !piece.extend(next) {
                break;
            }
            self.drop_oldest();
        }
        Some(piece)
    }

    fn oldest(&self) -> Option<&CommandRecord> {
        (self.count > 0).then(|| &self.commands[self.first])
    }

    fn drop_oldest(&mut self) {
        self.first = (self.first + 1) % MAX_WAITING;
        self.count -= 1;
    }
}

impl Default for Line {
    fn default() -> Self {
        Self::new()
    }
}

/// Commands of one operation whose ranges follow each other.
#[derive(Debug)]
pub struct Piece {
    commands: [CommandRecord; PIECE_COMMANDS],
    count: usize,
    /// Bytes of all of them.
    bytes: u64,
}

impl Piece {
    fn new(first: &CommandRecord) -> Self {
        let mut commands = [NOTHING; PIECE_COMMANDS];
        commands[0] = *first;
        Self {
            commands,
            count: 1,
            bytes: first.bytes,
        }
    }

    /// Adds a command; `false`: it belongs to another call.
    fn extend(&mut self, command: &CommandRecord) -> bool {
        let follows = self.address().checked_add(self.bytes) == Some(command.address);
        let bytes = self.bytes.saturating_add(command.bytes);
        let fits = bytes <= PIECE_BYTES && self.count < PIECE_COMMANDS;
        if command.operation != self.operation() || !follows || !fits {
            return false;
        }
        self.commands[self.count] = *command;
        self.count += 1;
        self.bytes = bytes;
        true
    }

    /// The commands, at least one.
    pub fn commands(&self) -> &[CommandRecord] {
        &self.commands[..self.count]
    }

    /// What to do.
    pub fn operation(&self) -> Operation {
        self.commands[0].operation
    }

    /// Where the first range begins.
    pub fn address(&self) -> u64 {
        self.commands[0].address
    }

    /// Bytes of all ranges together.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of the last command in its queue.
    pub fn last_id(&self) -> u32 {
        self.commands[self.count - 1].id
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

    fn pieces(line: &mut Line) -> Vec<(u64, u64)> {
        let pieces = core::iter::from_fn(|| line.take_piece());
        let blocks = |piece: Piece| (piece.address() / BLOCK_BYTES, piece.bytes() / BLOCK_BYTES);
        pieces.map(blocks).collect()
    }

    #[test]
    fn neighbours_go_in_one_call_up_to_its_size() {
        let mut line = Line::new();
        for block in [4, 5, 6, 9, 10, 11, 12, 13, 3] {
            assert!(line.push(&command(Operation::PREFETCH, 0, block, 1)));
        }
        let expected = [(4, 3), (9, 4), (13, 1), (3, 1)];
        assert_eq!(pieces(&mut line), expected);
        assert!(line.is_empty());
    }

    #[test]
    fn a_command_of_more_than_a_piece_goes_alone() {
        let mut line = Line::new();
        for (block, blocks) in [(1, 1), (2, 9), (11, 1)] {
            assert!(line.push(&command(Operation::PREFETCH, 0, block, blocks)));
        }
        assert_eq!(pieces(&mut line), [(1, 1), (2, 9), (11, 1)]);
    }

    #[test]
    fn another_operation_needs_another_call() {
        let mut line = Line::new();
        assert!(line.push(&command(Operation::POPULATE, 2, 1, 1)));
        assert!(line.push(&command(Operation::DISCARD, 2, 2, 1)));
        assert_eq!(pieces(&mut line), [(1, 1), (2, 1)]);
    }

    #[test]
    fn order_is_kept_around_the_end_of_the_line() {
        let mut line = Line::new();
        let push = |line: &mut Line, block: u64| {
            let waits = line.push(&command(Operation::EVICT, 1, 2 * block + 1, 1));
            assert_eq!(waits, block < 1000, "block {block}");
        };
        for block in 0..MAX_WAITING as u64 {
            push(&mut line, block);
        }
        assert!(line.is_full());
        push(&mut line, 1000);
        assert_eq!(
            line.take_piece().map(|piece| piece.address()),
            Some(BLOCK_BYTES)
        );
        push(&mut line, 500);
        let mut expected: Vec<_> = (1..MAX_WAITING as u64)
            .map(|block| (2 * block + 1, 1))
            .collect();
        expected.push((1001, 1));
        assert_eq!(pieces(&mut line), expected);
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
