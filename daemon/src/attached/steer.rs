//! The thread of one attached process: takes in what the driver did, lets the engine
//! decide, hands moves to the movers, and lets the process go when it is time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel};
use std::sync::{Arc, Mutex, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use oversub_engine::{BLOCK_BYTES, BlockId, Command, Event, FaultEngine, Queue};
use oversub_uvm::Uuid;
use oversub_uvm::process::Mapping;

use super::mover::{Migrate, Mover};
use super::{Figures, Message};
use crate::probes::Seen;

/// How often the target is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How often its mappings are read again at most.
const MAPS_INTERVAL: Duration = Duration::from_secs(1);
/// The same when a fault was in memory that is not known.
const UNKNOWN_INTERVAL: Duration = Duration::from_millis(50);
/// Messages taken before the engine decides.
const BURST: usize = 4096;

/// What there is to know of the target from outside.
pub trait Target: Send {
    /// It has ended.
    fn has_ended(&self) -> bool;
    /// The managed memory that it maps now; none where that cannot be told.
    fn managed(&self) -> Option<Vec<Mapping>>;
    /// The device of this number; none where there is none (yet).
    fn device(&self, processor: u16) -> Option<(Uuid, String)>;
}

/// Why an attachment ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The process has.
    Exited,
    /// It maps no managed memory any more: it has given it back, or become another program.
    Unmapped,
    /// It was asked for.
    Detached,
}

impl End {
    /// As shown.
    pub fn text(self) -> &'static str {
        match self {
            Self::Exited => "the process has ended",
            Self::Unmapped => "the process maps no managed memory any more",
            Self::Detached => "detached",
        }
    }
}

/// Steers one process.
pub(super) struct Steering {
    pub target: Box<dyn Target>,
    pub driver: Arc<dyn Migrate>,
    pub engine: FaultEngine,
    pub figures: Arc<Mutex<Figures>>,
    /// Somebody asks to let the process go.
    pub leave: Arc<AtomicBool>,
    managed: Arc<RwLock<Vec<Mapping>>>,
    stop: Arc<AtomicBool>,
    reports: SyncSender<Message>,
    /// Number of the device that is steered, and the ways to its movers, in and out.
    device: Option<(u16, [Sender<Command>; 2])>,
    movers: Vec<JoinHandle<()>>,
    maps_read: Option<Instant>,
    /// A fault was where no managed memory is known.
    unknown: bool,
}

impl Steering {
    pub fn new(
        target: Box<dyn Target>,
        driver: Arc<dyn Migrate>,
        engine: FaultEngine,
        figures: Arc<Mutex<Figures>>,
        reports: SyncSender<Message>,
    ) -> Self {
        Self {
            target,
            driver,
            engine,
            figures,
            leave: Arc::default(),
            managed: Arc::default(),
            stop: Arc::default(),
            reports,
            device: None,
            movers: Vec::new(),
            maps_read: None,
            unknown: false,
        }
    }

    /// Works until the process ends or is to be let go. When this returns nothing of it is
    /// held any more.
    pub fn run(mut self, messages: Receiver<Message>) -> End {
        let mut commands = Vec::new();
        let end = loop {
            match messages.recv_timeout(LOOK_INTERVAL) {
                Ok(first) => {
                    self.take(&first);
                    for message in messages.try_iter().take(BURST) {
                        self.take(&message);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break End::Detached,
            }
            if self.leave.load(Ordering::Relaxed) {
                break End::Detached;
            }
            if let Some(end) = self.look() {
                break end;
            }
            self.engine.decide(&mut commands);
            self.hand_out(&mut commands);
            self.publish();
        };
        self.publish();
        self.stop.store(true, Ordering::Relaxed);
        // The movers end when nothing can come any more and nobody hears them.
        drop(messages);
        self.device = None;
        for mover in self.movers.drain(..) {
            if mover.join().is_err() {
                tracing::error!("a thread that moves memory panicked");
            }
        }
        end
    }

    fn take(&mut self, message: &Message) {
        match message {
            Message::Seen(seen) => self.seen(seen),
            Message::Moved {
                event,
                moved_bytes,
                retries,
            } => {
                self.engine.step(event);
                if let Ok(mut figures) = self.figures.lock() {
                    figures.moved_bytes += moved_bytes;
                    figures.retries += retries;
                }
            }
            Message::Detach => {}
        }
    }

    fn seen(&mut self, seen: &Seen) {
        if let Event::Fault {
            address,
            by_host: false,
            ..
        } = seen.event
        {
            self.unknown |= !self.knows(address);
            if self.device.is_none() {
                self.find_device(seen.processor);
            }
        }
        let steered = self.device.as_ref().map(|(processor, _)| *processor);
        let elsewhere = matches!(seen.event, Event::Fault { .. } | Event::Migration { .. })
            && seen.processor != 0
            && steered.is_some_and(|steered| steered != seen.processor);
        if elsewhere {
            if let Ok(mut figures) = self.figures.lock() {
                figures.other_devices += 1;
            }
            return;
        }
        self.engine.step(&seen.event);
    }

    fn knows(&self, address: u64) -> bool {
        let inside = |mapping: &Mapping| (mapping.start..mapping.end).contains(&address);
        self.managed
            .read()
            .is_ok_and(|managed| managed.iter().any(inside))
    }

    /// Starts the movers once it is known which device faults.
    fn find_device(&mut self, processor: u16) {
        let Some((device, name)) = self.target.device(processor) else {
            return;
        };
        let mut ways = Vec::new();
        for queue in [Queue::In, Queue::Out] {
            let (sender, receiver) = channel();
            let mover = Mover {
                driver: Arc::clone(&self.driver),
                queue,
                device,
                managed: Arc::clone(&self.managed),
                stop: Arc::clone(&self.stop),
                reports: self.reports.clone(),
            };
            let thread = std::thread::Builder::new().name("mover".to_owned());
            match thread.spawn(move || mover.run(&receiver)) {
                Ok(mover) => self.movers.push(mover),
                Err(error) => {
                    tracing::error!(%error, "cannot start a thread that moves memory");
                    return;
                }
            }
            ways.push(sender);
        }
        if let Ok(ways) = <[Sender<Command>; 2]>::try_from(ways) {
            self.device = Some((processor, ways));
        }
        if let Ok(mut figures) = self.figures.lock() {
            figures.device = Some(name);
        }
    }

    fn hand_out(&mut self, commands: &mut Vec<Command>) {
        for command in commands.drain(..) {
            let way = self
                .device
                .as_ref()
                .and_then(|(_, ways)| match command.queue {
                    Queue::In => Some(&ways[0]),
                    Queue::Out => Some(&ways[1]),
                    Queue::Local => None,
                });
            let sent = way.is_some_and(|way| way.send(command).is_ok());
            if !sent {
                let Command { queue, id, .. } = command;
                self.engine.step(&Event::Refused { queue, id });
            }
        }
    }

    /// Whether it is time to let go; reads the mappings again now and then.
    fn look(&mut self) -> Option<End> {
        if self.target.has_ended() {
            return Some(End::Exited);
        }
        let age = self.maps_read.map(|at| at.elapsed());
        let patience = if self.unknown {
            UNKNOWN_INTERVAL
        } else {
            MAPS_INTERVAL
        };
        if age.is_some_and(|age| age < patience) {
            return None;
        }
        self.maps_read = Some(Instant::now());
        self.unknown = false;
        let Some(managed) = self.target.managed() else {
            return self.target.has_ended().then_some(End::Exited);
        };
        let before = self.managed.write().map(|mut known| {
            let before = known.clone();
            known.clone_from(&managed);
            before
        });
        let shrunk = before.is_ok_and(|before| {
            let kept = |old: &Mapping| {
                let whole = |new: &Mapping| new.start <= old.start && old.end <= new.end;
                managed.iter().any(whole)
            };
            !before.iter().all(kept)
        });
        if shrunk {
            self.engine.retain(|block| overlaps(&managed, block));
        }
        managed.is_empty().then_some(End::Unmapped)
    }

    fn publish(&self) {
        if let Ok(mut figures) = self.figures.lock() {
            figures.engine = self.engine.stats();
            figures.managed_bytes = self.managed.read().map_or(0, |managed| {
                managed.iter().map(|part| part.end - part.start).sum()
            });
        }
    }
}

fn overlaps(managed: &[Mapping], block: BlockId) -> bool {
    let (start, end) = (block.address(), block.address() + BLOCK_BYTES);
    managed
        .iter()
        .any(|part| part.start < end && start < part.end)
}
