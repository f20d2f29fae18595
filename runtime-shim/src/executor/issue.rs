//! From commands to driver calls.

use core::ptr;
use core::sync::atomic::Ordering;

use oversub_protocol::command::{CommandRecord, Operation, queue};
use oversub_protocol::event::{Kind, MemoryRecord};
use oversub_protocol::latency;
use oversub_protocol::ring::Reader;
use oversub_shim_core::abi::{CuResult, Handle, Location};
use oversub_shim_core::allocations::flags;
use oversub_shim_core::commands::{Line, PIECE_COMMANDS, Piece, check};
use oversub_shim_core::lock::Lock;
use oversub_shim_core::pool::point::Turn;
use oversub_shim_core::streams::has_passed;

use super::ISSUE;
use crate::context::{self, Place};
use crate::order::{self, LANES, Lane};
use crate::session::{self, Session, now_ns};
use crate::state::{ALLOCATIONS, POOL};
use crate::{driver, managed};

/// Held from the look at what memory there is until the driver has what is asked for it.
static HANDING_OVER: Lock<()> = Lock::new(());

/// Waits until the driver has everything that is asked for memory which is no longer known: it
/// is freed behind all of that, and nothing more is asked for it. The driver may check a call
/// before the memory is gone and execute it after.
pub fn wait_for_handed_over() {
    drop(HANDING_OVER.lock());
}

/// The command ring makes no sense any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken;

/// Runs the queues of one session.
#[derive(Debug)]
pub struct Issuer<'a> {
    session: &'a Session,
    place: Place,
    reader: Reader,
    /// What the driver was not given yet, by queue.
    lines: [Line; queue::COUNT],
    /// The lane whose turn it is.
    lane: usize,
    /// A turn of the local stream, and a command behind it, until the device has executed that.
    turn: Option<(Turn, u32)>,
}

impl<'a> Issuer<'a> {
    /// With nothing done yet.
    pub fn new(session: &'a Session, place: &Place, reader: Reader) -> Self {
        Self {
            session,
            place: *place,
            reader,
            lines: [const { Line::new() }; queue::COUNT],
            lane: 0,
            turn: None,
        }
    }

    /// The command ring.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Takes commands and hands them to the driver, of the queue out one call at a time: such a
    /// call copies before it returns, and what comes in is waited for. `Ok(true)`: there were
    /// some.
    ///
    /// # Errors
    /// [`Broken`]: the session must end.
    pub fn work(&mut self) -> Result<bool, Broken> {
        self.take()?;
        if self.lines.iter().all(Line::is_empty) {
            return Ok(false);
        }
        let _issue = ISSUE.lock();
        let context = self.place.context;
        if context::place().is_none_or(|now| now.context != context) {
            return Err(Broken);
        }
        let (Some(streams), Some(lanes)) = (order::streams(context), order::lanes(context)) else {
            return Err(Broken);
        };
        let [stream_in, stream_out, stream_local] = streams;
        self.run_in(stream_in, &lanes);
        self.run_local(stream_local);
        self.run_out(stream_out);
        Ok(true)
    }

    /// Sorts commands by queue, as long as each queue has room for more.
    fn take(&mut self) -> Result<(), Broken> {
        while !self.lines.iter().any(Line::is_full) {
            let record = match self.reader.next_record() {
                Ok(Some([slot])) => CommandRecord::decode(slot).copied(),
                Ok(None) => break,
                Ok(Some(_)) | Err(_) => return Err(Broken),
            };
            // A command that makes no sense would leave its queue's count behind for ever.
            let record = record.map_err(|_| Broken)?;
            let line = self.lines.get_mut(usize::from(record.queue));
            line.ok_or(Broken)?.push(&record);
        }
        Ok(())
    }

    fn next_piece(&mut self, number: u8) -> Option<Piece> {
        self.lines.get_mut(usize::from(number))?.take_piece()
    }

    /// Fetches over the lanes in turn. After each round the queue's own stream is put behind them.
    fn run_in(&mut self, stream: Handle, lanes: &[Lane; LANES]) {
        let mut piece = self.next_piece(queue::IN);
        while piece.is_some() {
            let mut last_id = 0;
            let mut used = [false; LANES];
            for _ in 0..LANES {
                let Some(now) = piece.take() else {
                    break;
                };
                self.lane = (self.lane + 1) % LANES;
                self.prefetch(
                    &now,
                    Location::device(self.place.device),
                    lanes[self.lane].stream,
                );
                used[self.lane] = true;
                last_id = now.last_id();
                piece = self.next_piece(queue::IN);
            }
            for (lane, _) in lanes.iter().zip(used).filter(|(_, used)| *used) {
                order::join(stream, lane);
            }
            self.write_done(queue::IN, stream, last_id);
        }
    }

    /// Makes room with one call.
    fn run_out(&mut self, stream: Handle) {
        if let Some(piece) = self.next_piece(queue::OUT) {
            self.prefetch(&piece, Location::HOST, stream);
            self.write_done(queue::OUT, stream, piece.last_id());
        }
    }

    /// Does what needs no transfer.
    fn run_local(&mut self, stream: Handle) {
        let mut last_id = None;
        while let Some(piece) = self.next_piece(queue::LOCAL) {
            match piece.operation() {
                Operation::DISCARD => self.discard(&piece),
                Operation::USE_ON_HOST | Operation::LET_MIGRATE => self.advise(&piece),
                _ => self.prefetch(&piece, Location::device(self.place.device), stream),
            }
            last_id = Some(piece.last_id());
        }
        if let Some(id) = last_id {
            // Before the number: it is behind every turn that there is now.
            let turn = order::newest_turn();
            self.write_done(queue::LOCAL, stream, id);
            self.turn = turn.map(|turn| (turn, id)).or(self.turn);
        }
    }

    /// Checks a command against what there is; one that is not valid is declined.
    fn is_valid(&self, command: &CommandRecord) -> bool {
        let inside = ALLOCATIONS.find(command.address).is_some_and(|allocation| {
            command
                .address
                .checked_add(command.bytes)
                .is_some_and(|end| end <= allocation.end())
        });
        // Freed since it was sent, most likely.
        let valid = check(command).is_ok() && inside;
        if !valid {
            self.refuse(command, CuResult::SUCCESS);
        }
        valid
    }

    fn refuse(&self, command: &CommandRecord, status: CuResult) {
        let control = self.session.control();
        if status.is_ok() && command.operation == Operation::DISCARD {
            control.discards_declined.fetch_add(1, Ordering::Relaxed);
        } else {
            control.commands_failed.fetch_add(1, Ordering::Relaxed);
        }
        let (queue, id) = (u32::from(command.queue), u64::from(command.id));
        let status = u64::from(status.0);
        let kind = Kind::COMMAND_FAILED;
        self.session.push(&MemoryRecord::new(
            kind,
            u8::MAX,
            queue,
            id,
            command.address,
            status,
        ));
    }

    /// Moves the piece's ranges by one call; those of a piece that is not as it should be one by
    /// one, so that the one at fault is known.
    fn prefetch(&self, piece: &Piece, to: Location, stream: Handle) {
        let _handing_over = HANDING_OVER.lock();
        let mut valid = [false; PIECE_COMMANDS];
        for (valid, command) in valid.iter_mut().zip(piece.commands()) {
            *valid = self.is_valid(command);
        }
        let valid = &valid[..piece.commands().len()];
        let call = |address, bytes| {
            // SAFETY: managed memory, as checked, which is not freed meanwhile.
            unsafe { driver::prefetch(address, bytes as usize, to, stream) }
        };
        if valid.iter().all(|valid| *valid) && call(piece.address(), piece.bytes()).is_ok() {
            piece
                .commands()
                .iter()
                .for_each(|command| self.count(command));
            return;
        }
        for (command, _) in piece
            .commands()
            .iter()
            .zip(valid)
            .filter(|(_, valid)| **valid)
        {
            let result = call(command.address, command.bytes);
            if result.is_ok() {
                self.count(command);
            } else {
                self.refuse(command, result);
            }
        }
    }

    /// Discards what the pool says no one has and no one still uses; declines the rest.
    fn discard(&self, piece: &Piece) {
        let mut ranges = [(0, 0); PIECE_COMMANDS];
        let mut claimed = [None; PIECE_COMMANDS];
        let mut count = 0;
        for command in piece.commands() {
            if !self.is_valid(command) {
                continue;
            }
            let range = (command.address, command.bytes);
            let mut pool = POOL.lock();
            let claim = pool.claim(range, session::has_passed, order::over());
            drop(pool);
            if claim.is_err() {
                self.refuse(command, CuResult::SUCCESS);
            } else {
                (ranges[count], claimed[count]) = (range, Some(command));
                count += 1;
            }
        }
        let mut results = [CuResult::SUCCESS; PIECE_COMMANDS];
        let (ranges, results) = (&ranges[..count], &mut results[..count]);
        order::discard(self.place.context, ranges, results);
        for (address, bytes) in ranges {
            POOL.lock().release(*address, *bytes);
        }
        for (command, result) in claimed.into_iter().flatten().zip(results.iter()) {
            if result.is_ok() {
                self.count(command);
            } else {
                self.refuse(command, *result);
            }
        }
    }

    /// Advises where ranges should be. What the program obtained as managed memory itself is
    /// its own to advise on.
    fn advise(&self, piece: &Piece) {
        for command in piece.commands() {
            let _handing_over = HANDING_OVER.lock();
            if !self.is_valid(command) {
                continue;
            }
            let own = ALLOCATIONS.find(command.address);
            let result = if own.is_none_or(|found| found.is(flags::BY_PROGRAM)) {
                Err(CuResult::NOT_SUPPORTED)
            } else if command.operation == Operation::LET_MIGRATE {
                managed::let_migrate(self.place.device, command.address, command.bytes)
            } else if managed::keep_on_host(command.address, command.bytes) {
                Ok(())
            } else {
                Err(CuResult::NOT_SUPPORTED)
            };
            match result {
                Ok(()) => self.count(command),
                Err(status) => self.refuse(command, status),
            }
        }
    }

    /// Counts an executed command and its latency.
    fn count(&self, command: &CommandRecord) {
        let control = self.session.control();
        let now = now_ns();
        control.last_issue_ns.store(now, Ordering::Relaxed);
        let counter = control
            .commands_executed
            .get(usize::from(command.operation.0));
        if let Some(counter) = counter.or(control.commands_executed.first()) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        if command.cause_ns == 0 || command.cause_ns > now {
            return;
        }
        let took_ns = now - command.cause_ns;
        control.latency_sum_ns.fetch_add(took_ns, Ordering::Relaxed);
        control.latency_count.fetch_add(1, Ordering::Relaxed);
        let bucket = latency::bucket(took_ns / 1000);
        if let Some(bucket) = control.latency_buckets.get(bucket) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Has the queue say that it has executed everything up to `id`.
    fn write_done(&self, number: u8, stream: Handle, id: u32) {
        let device = self.session.device();
        let base = self.session.marks_at.load(Ordering::Relaxed);
        let Some(word) = device.done.get(usize::from(number)) else {
            return;
        };
        let offset = word.as_ptr().addr() - ptr::from_ref(device).addr();
        // SAFETY: the page is registered with the driver and never unmapped.
        let written =
            base != 0 && unsafe { driver::write_value(stream, base + offset as u64, id) }.is_ok();
        if !written {
            // SAFETY: our own stream.
            unsafe { driver::cuStreamSynchronize(stream) };
            word.store(id, Ordering::Release);
        }
    }

    /// Notes the turns that the device has executed: no one needs to wait for them any more.
    pub fn report(&mut self) {
        let done = &self.session.device().done[usize::from(queue::LOCAL)];
        let over = |(_, id): &(Turn, u32)| has_passed(done.load(Ordering::Acquire), (*id).into());
        if let Some((turn, _)) = self.turn.take_if(|turn| over(turn)) {
            order::note_over(turn);
        }
    }
}
