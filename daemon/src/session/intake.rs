//! From what a client says to what the engine hears.
//!
//! Owns the engine of one session and everything needed to judge a record: the session's
//! memory, its functions, its sequence numbers, the commands it was given. Knows no
//! descriptor and no thread. A record that is wrong is counted and dropped; it never
//! reaches the engine.

use oversub_engine::{
    BLOCK_BYTES, Command, Copy, Engine, Event, FunctionId, Launch, Micros, Operation, Queue, Range,
    Seq, StreamId,
};
use oversub_protocol::command::{CommandRecord, Operation as WireOperation, queue};
use oversub_protocol::decode::Record;
use oversub_protocol::event::{CopyRecord, LaunchRecord, MemoryRecord, Words};
use oversub_protocol::layout::STREAM_SLOTS;

use super::memory::Memory;
use super::progress::{DeviceWords, Progress};
use crate::config::Config;

/// Most blocks over which the engine is told of one fault, migration or population.
const MAX_PROBE_BYTES: u64 = 64 * BLOCK_BYTES;

/// What a session counts besides the engine's own figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Records taken from the ring.
    pub records: u64,
    /// Of them, wrong in themselves or naming what is not the session's.
    pub rejected: u64,
    /// Of them, of a kind that this build does not know.
    pub unknown: u64,
    /// Allocations not followed: beyond the limits.
    pub untracked_bytes: u64,
    /// Commands that waited for room in the command ring.
    pub deferred: u64,
    /// Probe events that were the session's.
    pub probe_events: u64,
}

/// Commands of one queue, by their positions.
#[derive(Clone, Copy, Debug, Default)]
struct QueueState {
    issued: u32,
    done: u32,
}

/// The judge and the engine of one session.
#[derive(Debug)]
pub struct Intake {
    engine: Engine,
    memory: Memory,
    progress: Progress,
    queues: [QueueState; queue::COUNT],
    /// Bit by function number: it was named.
    functions: Vec<u64>,
    max_functions: u32,
    counters: Counters,
    unmanaged_bytes: u64,
}

impl Intake {
    /// With an engine that knows nothing yet.
    pub fn new(engine: Engine, config: &Config) -> Self {
        let session = &config.session;
        let max_bytes = (config.engine.blocks as u64).saturating_mul(BLOCK_BYTES);
        Self {
            engine,
            memory: Memory::new(session.max_allocations as usize, max_bytes),
            progress: Progress::default(),
            queues: Default::default(),
            functions: Vec::new(),
            max_functions: session.max_functions,
            counters: Counters::default(),
            unmanaged_bytes: 0,
        }
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The engine, to change its limits.
    pub fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// The figures.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// So many commands wait for room in the command ring.
    pub fn defer(&mut self, commands: u64) {
        self.counters.deferred = self.counters.deferred.saturating_add(commands);
    }

    /// Something that the program or the daemon asked for is still to be executed.
    /// `marks`: the program has progress marks written; without them nobody can tell.
    pub fn outstanding(&self, marks: bool) -> bool {
        (marks && self.progress.outstanding())
            || self.queues.iter().any(|queue| queue.issued != queue.done)
    }

    /// Takes in one record of the event ring.
    pub fn record(&mut self, now: Micros, slots: &[Words]) {
        self.counters.records += 1;
        let good = match Record::decode(slots) {
            Ok(Record::Unknown(_)) => {
                self.counters.unknown += 1;
                true
            }
            Ok(record) => self.known_record(now, &record),
            Err(_) => false,
        };
        self.counters.rejected += u64::from(!good);
    }

    fn known_record(&mut self, now: Micros, record: &Record<'_>) -> bool {
        match *record {
            Record::Function { record, name } => self.function(now, record.function, name),
            Record::Launch { record, words } => self.launch(now, record, words),
            Record::Alloc(record) => self.alloc(now, record),
            Record::Free(record) => self.free(now, record.address),
            Record::Use(record) => {
                let range = Range {
                    address: record.address,
                    bytes: record.bytes,
                };
                let good = self.memory.pool_holds(range);
                if good {
                    self.engine.step(
                        now,
                        &Event::Use {
                            range,
                            seq: Seq(record.seq),
                        },
                    );
                }
                good
            }
            Record::Unuse(record) => {
                let address = record.address;
                let good = self.memory.pool_holds(Range { address, bytes: 1 });
                if good {
                    let stream = StreamId(Progress::slot(record.head.stream));
                    self.engine.step(
                        now,
                        // The launch of that number was put into its stream before.
                        &Event::Unuse {
                            address,
                            stream,
                            seq: Seq(record.seq.saturating_add(1)),
                        },
                    );
                }
                good
            }
            Record::Copy(record) => {
                let src = self.managed(record, CopyRecord::SRC_MANAGED, record.src);
                self.copy(now, record, src)
            }
            Record::Memset(record) => self.copy(now, record, Some(None)),
            Record::Sync(record) => self.sync(now, record),
            Record::CommandFailed(record) => self.refused(now, record),
            Record::Unknown(_) => true,
        }
    }

    fn function(&mut self, now: Micros, function: u32, name: &str) -> bool {
        if function >= self.max_functions {
            return false;
        }
        let (word, bit) = (function as usize / 64, 1 << (function % 64));
        if word >= self.functions.len() {
            self.functions.resize(word + 1, 0);
        }
        if self.functions[word] & bit == 0 {
            self.functions[word] |= bit;
            self.engine.step(
                now,
                &Event::Function {
                    function: FunctionId(function),
                    name,
                },
            );
        }
        true
    }

    fn launch(&mut self, now: Micros, record: &LaunchRecord, words: &[u64]) -> bool {
        if record.head.flags & LaunchRecord::FLAG_CAPTURED != 0 {
            // It runs later, if at all, and not under this number.
            return true;
        }
        let stream = record.head.stream;
        if !self.progress.launched(stream, record.seq) {
            return false;
        }
        let event = Event::Launch(Launch {
            seq: Seq(record.seq),
            stream: StreamId(Progress::slot(stream)),
            function: FunctionId(record.function),
            grid: record.grid,
            block: record.block,
            words,
        });
        self.engine.step(now, &event);
        true
    }

    fn alloc(&mut self, now: Micros, record: &MemoryRecord) -> bool {
        let range = Range {
            address: record.address,
            bytes: record.bytes,
        };
        if record.head.flags & MemoryRecord::MANAGED == 0 {
            self.unmanaged_bytes = self.unmanaged_bytes.saturating_add(range.bytes);
            return true;
        }
        let pool = record.head.flags & MemoryRecord::POOL != 0;
        if !self.memory.insert(range, pool) {
            self.counters.untracked_bytes =
                self.counters.untracked_bytes.saturating_add(range.bytes);
            return false;
        }
        let placed = record.head.flags & MemoryRecord::PREFETCHED != 0;
        let part = u64::from(record.head.flags >> MemoryRecord::PART_SHIFT) * BLOCK_BYTES;
        let prefetched = placed && part == 0;
        let on_host = record.head.flags & MemoryRecord::ON_HOST != 0;
        self.engine.step(
            now,
            &Event::Alloc {
                range,
                pool,
                prefetched,
                on_host,
            },
        );
        if placed && part > 0 {
            let range = Range {
                address: range.address,
                bytes: part.min(range.bytes),
            };
            self.engine.step(now, &Event::Placed { range });
        }
        true
    }

    fn free(&mut self, now: Micros, address: u64) -> bool {
        let good = self.memory.remove(address);
        if good {
            self.engine.step(now, &Event::Free { address });
        }
        // Memory that is not managed is given back by the same record.
        good || self.unmanaged_bytes > 0
    }

    /// The managed side of a copy: `None` where the record claims what is not the session's.
    fn managed(&self, record: &CopyRecord, flag: u32, address: u64) -> Option<Option<Range>> {
        if record.head.flags & flag == 0 || record.bytes == 0 {
            return Some(None);
        }
        let range = Range {
            address,
            bytes: record.bytes,
        };
        self.memory.holds(range).then_some(Some(range))
    }

    fn copy(&mut self, now: Micros, record: &CopyRecord, src: Option<Option<Range>>) -> bool {
        let dst = self.managed(record, CopyRecord::DST_MANAGED, record.dst);
        let (Some(src), Some(dst)) = (src, dst) else {
            return false;
        };
        let stream = record.head.stream;
        if !self.progress.launched(stream, record.seq) {
            return false;
        }
        let stream = StreamId(Progress::slot(stream));
        self.engine.step(
            now,
            &Event::Copy(Copy {
                seq: Seq(record.seq),
                stream,
                dst,
                src,
            }),
        );
        true
    }

    fn sync(&mut self, now: Micros, record: &MemoryRecord) -> bool {
        let one = [Progress::slot(record.head.stream)];
        let all = record.head.stream == u8::MAX;
        let streams = if all {
            self.progress.used().to_vec()
        } else {
            one.to_vec()
        };
        for stream in streams {
            if let Some(seq) = self.progress.synchronized(stream, record.seq) {
                let stream = StreamId(stream);
                self.engine.step(
                    now,
                    &Event::Progress {
                        stream,
                        seq: Seq(seq),
                    },
                );
            }
        }
        true
    }

    fn refused(&mut self, now: Micros, record: &MemoryRecord) -> bool {
        let index = record.head.flags as usize;
        let Some(queue) = self.queues.get(index) else {
            return false;
        };
        let id = record.seq as u32;
        // It was issued, and not so long ago that numbers have come round.
        let good = id != 0 && queue.issued.wrapping_sub(id) < u32::MAX / 2;
        if good {
            self.engine.step(
                now,
                &Event::Refused {
                    queue: Queue::ALL[index],
                    id,
                },
            );
        }
        good
    }

    /// Streams whose words say how far they are.
    fn marked(&self, index: usize) -> Option<u8> {
        let stream = self.progress.used()[index];
        (usize::from(stream) + 1 < STREAM_SLOTS).then_some(stream)
    }

    /// The device was seen to be so far, before what it did until then is told of.
    pub fn reached(&mut self, now: Micros, words: &DeviceWords) {
        for index in 0..self.progress.used().len() {
            let Some(stream) = self.marked(index) else {
                continue;
            };
            let word = words.progress[usize::from(stream)];
            if let Some(seq) = self.progress.newly_passed(stream, word) {
                let (stream, seq) = (StreamId(stream), Seq(seq));
                self.engine.step(now, &Event::Reached { stream, seq });
            }
        }
    }

    /// Takes in the words that the device writes; `true`: it has moved.
    pub fn device(&mut self, now: Micros, words: &DeviceWords) -> bool {
        let mut moved = false;
        for index in 0..self.progress.used().len() {
            let Some(stream) = self.marked(index) else {
                continue;
            };
            let word = words.progress[usize::from(stream)];
            if let Some(seq) = self.progress.word(stream, word) {
                let stream = StreamId(stream);
                self.engine.step(
                    now,
                    &Event::Progress {
                        stream,
                        seq: Seq(seq),
                    },
                );
                moved = true;
            }
        }
        for (index, state) in self.queues.iter_mut().enumerate() {
            let done = words.done[index];
            let newly = done.wrapping_sub(state.done);
            if newly != 0 && newly <= state.issued.wrapping_sub(state.done) {
                state.done = done;
                let queue = Queue::ALL[index];
                self.engine.step(now, &Event::Completed { queue, id: done });
                moved = true;
            }
        }
        moved
    }

    /// Takes in what a probe saw in this session's process; `false`: not in its memory.
    pub fn probe(&mut self, now: Micros, event: Event<'_>) -> bool {
        let event = match event {
            Event::Fault { address, .. } => {
                if !self.memory.holds_blocks(Range { address, bytes: 1 }) {
                    return false;
                }
                event
            }
            Event::Migration {
                range,
                direction,
                cause,
            } => match self.probed(range) {
                Some(range) => Event::Migration {
                    range,
                    direction,
                    cause,
                },
                None => return false,
            },
            Event::Populated { range } => match self.probed(range) {
                Some(range) => Event::Populated { range },
                None => return false,
            },
            Event::FaultBatch { .. } => event,
            _ => return false,
        };
        self.counters.probe_events += 1;
        self.engine.step(now, &event);
        true
    }

    fn probed(&self, range: Range) -> Option<Range> {
        let range = self.memory.clip(range)?;
        (range.bytes <= MAX_PROBE_BYTES).then_some(range)
    }

    /// Asks the engine what to do now, as wire records.
    pub fn decide(
        &mut self,
        now: Micros,
        cause_ns: u64,
        scratch: &mut Vec<Command>,
        out: &mut impl Extend<CommandRecord>,
    ) {
        scratch.clear();
        self.engine.decide(now, scratch);
        for command in scratch.iter() {
            let wire = wire_queue(command.queue);
            self.queues[usize::from(wire)].issued = command.id;
            out.extend(Some(CommandRecord {
                operation: wire_operation(command.operation),
                queue: wire,
                reserved: 0,
                id: command.id,
                address: command.range.address,
                bytes: command.range.bytes,
                cause_ns,
                reserved_words: [0; 3],
            }));
        }
    }
}

fn wire_queue(queue: Queue) -> u8 {
    match queue {
        Queue::In => queue::IN,
        Queue::Out => queue::OUT,
        Queue::Local => queue::LOCAL,
    }
}

fn wire_operation(operation: Operation) -> WireOperation {
    match operation {
        Operation::Prefetch => WireOperation::PREFETCH,
        Operation::Evict => WireOperation::EVICT,
        Operation::Discard => WireOperation::DISCARD,
        Operation::Populate | Operation::Touch => WireOperation::POPULATE,
        Operation::UseOnHost => WireOperation::USE_ON_HOST,
        Operation::LetMigrate => WireOperation::LET_MIGRATE,
    }
}
