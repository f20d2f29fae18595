//! From commands to driver calls.

use core::ptr;
use core::sync::atomic::Ordering;

use oversub_protocol::command::{CommandRecord, Operation, queue};
use oversub_protocol::event::{Kind, MemoryRecord};
use oversub_protocol::latency;
use oversub_protocol::ring::Reader;
use oversub_shim_core::abi::{CuResult, Handle, Location};
use oversub_shim_core::allocations::flags;
use oversub_shim_core::commands::{Batch, check};
use oversub_shim_core::pool::point::Turn;
use oversub_shim_core::streams::has_passed;

use super::ISSUE;
use crate::context::{self, Place};
use crate::order;
use crate::session::{self, Session, now_ns};
use crate::state::{ALLOCATIONS, POOL};
use crate::{driver, managed};

/// Most commands taken at a time.
const TAKEN: usize = 64;

/// The command ring makes no sense any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken;

/// Runs the queues of one session.
#[derive(Debug)]
pub struct Issuer<'a> {
    session: &'a Session,
    place: Place,
    reader: Reader,
    taken: [CommandRecord; TAKEN],
    /// Which of them make sense.
    valid: [bool; TAKEN],
    /// A turn of the local stream, and a command behind it, until the device has executed that.
    turn: Option<(Turn, u32)>,
}

impl<'a> Issuer<'a> {
    /// With nothing done yet.
    pub fn new(session: &'a Session, place: &Place, reader: Reader) -> Self {
        let nothing = CommandRecord {
            operation: Operation(0),
            queue: 0,
            reserved: 0,
            id: 0,
            address: 0,
            bytes: 0,
            cause_ns: 0,
            reserved_words: [0; 3],
        };
        Self {
            session,
            place: *place,
            reader,
            taken: [nothing; TAKEN],
            valid: [false; TAKEN],
            turn: None,
        }
    }

    /// The command ring.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Takes commands and hands them to the driver. `Ok(true)`: there were some.
    ///
    /// # Errors
    /// [`Broken`]: the session must end.
    pub fn work(&mut self) -> Result<bool, Broken> {
        let mut count = 0;
        while count < TAKEN {
            let record = match self.reader.next_record() {
                Ok(Some([slot])) => CommandRecord::decode(slot).copied(),
                Ok(None) => break,
                Ok(Some(_)) | Err(_) => return Err(Broken),
            };
            // A command that makes no sense would leave its queue's count behind for ever.
            let Ok(record) = record else {
                return Err(Broken);
            };
            if let Some(cell) = self.taken.get_mut(count) {
                *cell = record;
                let valid = self.is_valid(&record);
                if let Some(cell) = self.valid.get_mut(count) {
                    *cell = valid;
                }
                count += 1;
            }
        }
        if count == 0 {
            return Ok(false);
        }
        let _issue = ISSUE.lock();
        let is_there = context::place().is_some_and(|now| now.context == self.place.context);
        let streams = if is_there {
            order::streams(self.place.context)
        } else {
            None
        };
        let Some(streams) = streams else {
            return Err(Broken);
        };
        // Queues run side by side: each one's commands are gathered past the others'.
        for (number, stream) in (0..).zip(streams) {
            self.run_queue(number, stream, count);
        }
        Ok(true)
    }

    /// Hands over the commands of one queue, together where they may go together.
    fn run_queue(&mut self, number: u8, stream: Handle, count: usize) {
        let mut next = 0;
        let mut last_id = None;
        while next < count {
            let Some(first) = self.taken.get(next).copied() else {
                break;
            };
            if first.queue != number {
                next += 1;
                continue;
            }
            let mut batch = Batch::new(number, first.operation);
            let start = next;
            while let Some(command) = self.taken.get(next).copied().filter(|_| next < count) {
                if command.queue == number {
                    if command.operation != first.operation {
                        break;
                    }
                    let valid = self.valid.get(next).copied().unwrap_or(false);
                    if valid && !batch.push(&command) {
                        break;
                    }
                    last_id = Some(command.id);
                }
                next += 1;
            }
            self.hand_over(&mut batch, stream, start, next);
        }
        if let Some(id) = last_id {
            // Before the number: it is behind every turn that there is now.
            let turn = order::newest_turn().filter(|_| number == queue::LOCAL);
            self.write_done(number, stream, id);
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

    /// Hands a batch to the driver; `taken[start .. end]` are its commands (and others').
    fn hand_over(&mut self, batch: &mut Batch, stream: Handle, start: usize, end: usize) {
        match batch.operation {
            Operation::DISCARD => return self.discard_each(start, end),
            Operation::USE_ON_HOST | Operation::LET_MIGRATE => return self.advise_each(start, end),
            _ => {}
        }
        if batch.is_empty() {
            return;
        }
        let to = match batch.operation {
            Operation::EVICT => Location::HOST,
            _ => Location::device(self.place.device),
        };
        if prefetch_batch(batch, to, stream).is_ok() {
            self.count(batch.queue, batch.operation, start, end);
            return;
        }
        // One by one, so that the one at fault is known.
        for index in start..end {
            let Some(command) = self.command(index, batch.queue) else {
                continue;
            };
            let bytes = command.bytes as usize;
            // SAFETY: managed memory, as checked; if freed meanwhile, the driver refuses.
            let result = unsafe { driver::prefetch(command.address, bytes, to, stream) };
            if result.is_ok() {
                self.count(batch.queue, batch.operation, index, index + 1);
            } else {
                self.refuse(&command, result);
            }
        }
    }

    /// The command at `index`, if it belongs to `queue` and was found valid.
    fn command(&self, index: usize, queue: u8) -> Option<CommandRecord> {
        let command = self.taken.get(index).copied()?;
        (command.queue == queue && *self.valid.get(index)?).then_some(command)
    }

    /// Discards what the pool says no one has and no one still uses; declines the rest.
    fn discard_each(&mut self, start: usize, end: usize) {
        let mut ranges = [(0, 0); TAKEN];
        let mut claimed = [0; TAKEN];
        let mut count = 0;
        for index in start..end {
            let Some(command) = self.command(index, queue::LOCAL) else {
                continue;
            };
            let (address, bytes) = (command.address, command.bytes);
            let mut pool = POOL.lock();
            let claim = pool.claim((address, bytes), session::has_passed, order::over());
            drop(pool);
            if claim.is_err() {
                self.refuse(&command, CuResult::SUCCESS);
            } else if let (Some(range), Some(at)) = (ranges.get_mut(count), claimed.get_mut(count))
            {
                (*range, *at) = ((address, bytes), index);
                count += 1;
            }
        }
        let mut results = [CuResult::SUCCESS; TAKEN];
        let (ranges, results) = (&ranges[..count], &mut results[..count]);
        order::discard(self.place.context, ranges, results);
        for (address, bytes) in ranges {
            POOL.lock().release(*address, *bytes);
        }
        for (index, result) in claimed.into_iter().zip(results.iter()) {
            match self.command(index, queue::LOCAL) {
                Some(_) if result.is_ok() => {
                    self.count(queue::LOCAL, Operation::DISCARD, index, index + 1);
                }
                Some(command) => self.refuse(&command, *result),
                None => {}
            }
        }
    }

    /// Advises where ranges should be. What the program obtained as managed memory itself is
    /// its own to advise on.
    fn advise_each(&self, start: usize, end: usize) {
        for index in start..end {
            let Some(command) = self.command(index, queue::LOCAL) else {
                continue;
            };
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
                Ok(()) => self.count(queue::LOCAL, command.operation, index, index + 1),
                Err(status) => self.refuse(&command, status),
            }
        }
    }

    /// Counts executed commands and their latency.
    fn count(&self, number: u8, operation: Operation, start: usize, end: usize) {
        let control = self.session.control();
        let now = now_ns();
        control.last_issue_ns.store(now, Ordering::Relaxed);
        for command in (start..end).filter_map(|index| self.command(index, number)) {
            let counter = control.commands_executed.get(usize::from(operation.0));
            if let Some(counter) = counter.or(control.commands_executed.first()) {
                counter.fetch_add(1, Ordering::Relaxed);
            }
            if command.cause_ns == 0 || command.cause_ns > now {
                continue;
            }
            let took_ns = now - command.cause_ns;
            control.latency_sum_ns.fetch_add(took_ns, Ordering::Relaxed);
            control.latency_count.fetch_add(1, Ordering::Relaxed);
            let bucket = latency::bucket(took_ns / 1000);
            if let Some(bucket) = control.latency_buckets.get(bucket) {
                bucket.fetch_add(1, Ordering::Relaxed);
            }
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

fn prefetch_batch(batch: &mut Batch, to: Location, stream: Handle) -> CuResult {
    let count = batch.len();
    if count == 1 {
        let mut ranges = batch.ranges();
        let Some((address, bytes)) = ranges.next() else {
            return CuResult::SUCCESS;
        };
        // SAFETY: managed memory, as checked; if freed meanwhile, the driver refuses.
        return unsafe { driver::prefetch(address, bytes, to, stream) };
    }
    let mut location = to;
    let mut starts = [0_usize];
    let addresses = batch.addresses().as_mut_ptr();
    let sizes = batch.sizes().as_mut_ptr();
    // SAFETY: as above; all lists are local and as long as said.
    unsafe {
        driver::cuMemPrefetchBatchAsync(
            addresses,
            sizes,
            count,
            &raw mut location,
            starts.as_mut_ptr(),
            1,
            0,
            stream,
        )
    }
}
