//! One session: one process on one GPU.
//!
//! Owns the turn: take in what came, let the engine decide, hand out commands, say when
//! to look again. What records mean is [`intake`]'s; waiting is [`crate::gpu`]'s.

pub mod intake;
pub mod memory;
pub mod progress;

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use oversub_engine::{Bytes, Command, Engine, Event, Micros, Profile};
use oversub_protocol::command::CommandRecord;
use oversub_protocol::layout::ControlPage;
use oversub_protocol::ring::Corrupt;

use crate::channel::Channel;
use crate::clock;
use crate::config::{Config, Policy, ProfilesConfig};
use crate::control::why::{self, SessionWhy, WhyQuestion};
use crate::control::{LatencyView, SessionView};
use crate::profiles;
use intake::Intake;
use progress::DeviceWords;

/// Looks at the device's words that may find nothing before they become rarer.
const PATIENCE: u32 = 16;
/// Longest time between two looks while something is outstanding, and the usual one while
/// there is nothing to steer.
const SLOWEST_LOOK_US: u64 = 20_000;
/// While there is nothing to steer the daemon looks by itself for so long after the last
/// record, so that a program that pauses a moment need not wake it for each burst.
const RECENT_US: u64 = 1_000_000;
/// After so many fruitless looks nobody looks any more until the program says something.
const GIVE_UP_LOOKS: u32 = 3_000;

/// Who is at the other end, as the kernel says, and what it said of its device.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Number of the session.
    pub session: u64,
    /// Process.
    pub pid: u32,
    /// User.
    pub uid: u32,
    /// Name of the process, cleaned of control characters.
    pub command: String,
    /// Label of the GPU: `soft` or its UUID.
    pub gpu: String,
    /// Name of the device.
    pub device: String,
    /// The device is a soft GPU of this process alone.
    pub soft: bool,
    /// Residency budget that the program was started with; 0: none.
    pub budget_bytes: u64,
    /// Bytes that managed memory could fill if the session were alone.
    pub available_bytes: u64,
    /// Progress marks will come.
    pub has_progress: bool,
    /// Policy in force.
    pub policy: Policy,
}

/// A session in the hands of its GPU's thread.
#[derive(Debug)]
pub struct Session {
    /// Who it is.
    pub peer: Peer,
    /// Its end is the end of the session.
    pub socket: OwnedFd,
    /// Where to leave what the program taught.
    pub profile: Option<(PathBuf, ProfilesConfig)>,
    channel: Channel,
    intake: Intake,
    /// What the device's words were when somebody last looked.
    words: DeviceWords,
    pending: VecDeque<CommandRecord>,
    look: Look,
    started: Micros,
    records_per_turn: usize,
    stride: u32,
    calm: bool,
    run_ahead: u32,
    /// When the ring was last found empty: the records of the next turn are younger.
    empty_ns: u64,
}

/// When the device's words are read next.
#[derive(Debug)]
struct Look {
    interval_us: u64,
    fruitless: u32,
    next: Option<Micros>,
    /// When a record last came.
    heard: Micros,
}

/// What a turn left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// There is more in the ring than one turn takes.
    pub more: bool,
    /// Records taken.
    pub records: usize,
}

impl Session {
    /// A session that has just been accepted.
    pub fn new(
        peer: Peer,
        socket: OwnedFd,
        channel: Channel,
        engine: Engine,
        config: &Config,
    ) -> Self {
        let session = Self {
            peer,
            socket,
            profile: None,
            words: DeviceWords::read(channel.device_page()),
            channel,
            intake: Intake::new(engine, config),
            pending: VecDeque::new(),
            look: Look {
                interval_us: config.session.progress_interval_us,
                fruitless: 0,
                next: None,
                heard: Micros(0),
            },
            started: clock::now(),
            records_per_turn: config.session.records_per_turn as usize,
            stride: 1,
            calm: false,
            run_ahead: 0,
            empty_ns: clock::monotonic_ns(),
        };
        session
            .channel
            .control_page()
            .mark_stride
            .store(1, Ordering::Release);
        session
    }

    /// The shared memory and its wake-ups.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// The device is shared: from now on managed memory may fill so much of it.
    pub fn set_capacity(&mut self, capacity: Bytes) {
        self.intake.engine_mut().set_capacity(capacity);
    }

    /// Reads how far the device is. Before each turn, and before what probes saw is taken in:
    /// a turn that takes the device to be further than that would judge launches whose faults
    /// are still to be told.
    pub fn look(&mut self) {
        self.words = DeviceWords::read(self.channel.device_page());
    }

    /// What probes are found to have seen until now may be of launches up to where the device is
    /// by now.
    pub fn look_ahead(&mut self) {
        let words = DeviceWords::read(self.channel.device_page());
        self.intake.reached(clock::now(), &words);
    }

    /// Takes in what a probe saw; `false`: not in this session's memory.
    pub fn probe(&mut self, now: Micros, event: Event<'_>) -> bool {
        self.intake.probe(now, event)
    }

    /// Takes in what came, up to the limit of one turn, and hands out what is to be done.
    ///
    /// # Errors
    /// The event ring is corrupt: the session must end.
    pub fn turn(&mut self, scratch: &mut Vec<Command>) -> Result<Turn, Corrupt> {
        // The records carry no time: the moment at which they are found is the nearest to it
        // that the daemon knows.
        let started_ns = clock::monotonic_ns();
        let now = Micros(started_ns / 1_000);
        let Self {
            channel,
            intake,
            words,
            ..
        } = self;
        let records = channel.drain(self.records_per_turn, |slots| intake.record(now, slots))?;
        let empty_ns = std::mem::replace(&mut self.empty_ns, clock::monotonic_ns());
        // After the records: a word never speaks of a record that is still to come.
        let moved = intake.device(now, words);
        let cause_ns = self.cause(records, empty_ns..=started_ns);
        let more = records == self.records_per_turn;
        if self.flush() && !more {
            self.intake
                .decide(clock::now(), cause_ns, scratch, &mut self.pending);
            self.flush();
            self.tell_wishes();
        }
        self.note_if_empty();
        if records > 0 {
            self.look.heard = now;
        }
        self.plan_look(now, moved || records > 0);
        Ok(Turn { more, records })
    }

    /// What comes from here on is younger.
    fn note_if_empty(&mut self) {
        let now_ns = clock::monotonic_ns();
        if !self.channel.has_news() {
            self.empty_ns = now_ns;
        }
    }

    /// When what a turn answers was written, for the program's count of how long commands
    /// take: the moment at which it woke the daemon, if it did so within `possible`, else
    /// the beginning of that, when there was nothing in the ring, which is earlier than the
    /// truth; 0, which is not counted, where the program has said nothing.
    fn cause(&self, records: usize, possible: RangeInclusive<u64>) -> u64 {
        let woken_ns = self.channel.control_page().woken_ns.load(Ordering::Relaxed);
        match records {
            0 => 0,
            _ if possible.contains(&woken_ns) => woken_ns,
            _ => *possible.start(),
        }
    }

    /// Takes in what a program that has gone left behind: a ring full at most.
    pub fn take_rest(&mut self, scratch: &mut Vec<Command>) {
        let records = self.channel.event_slots() as usize;
        for _ in 0..=records / self.records_per_turn {
            self.look();
            if !self.turn(scratch).is_ok_and(|turn| turn.more) {
                return;
            }
        }
    }

    /// Tells the program how often to mark progress, how far ahead it had better be, and whether
    /// anything is urgent.
    fn tell_wishes(&mut self) {
        let engine = self.intake.engine();
        let (stride, calm) = (engine.mark_stride().max(1), engine.is_calm());
        let run_ahead = engine.run_ahead().unwrap_or(0);
        let control = self.channel.control_page();
        if run_ahead != self.run_ahead {
            self.run_ahead = run_ahead;
            control.run_ahead.store(run_ahead, Ordering::Release);
        }
        if stride != self.stride {
            self.stride = stride;
            control.mark_stride.store(stride, Ordering::Release);
        }
        if calm != self.calm {
            self.calm = calm;
            control.calm.store(u32::from(calm), Ordering::Release);
            // Sleeps are rare where nothing is steered.
            self.channel.spare_writers(calm);
        }
    }

    /// Announces that nobody looks at the ring any more; `false`: something came, look.
    /// Where nothing that runs can call for anything, and a look is planned, records of what
    /// runs may wait for it.
    pub fn prepare_sleep(&self) -> bool {
        if self.calm && self.look.next.is_some() {
            self.channel.prepare_doze()
        } else {
            self.channel.prepare_sleep()
        }
    }

    /// Hands out waiting commands; `true`: none is left.
    fn flush(&mut self) -> bool {
        while let Some(command) = self.pending.front() {
            if !self.channel.push(command) {
                self.intake.defer(self.pending.len() as u64);
                return false;
            }
            self.pending.pop_front();
        }
        true
    }

    fn plan_look(&mut self, now: Micros, fruitful: bool) {
        if fruitful {
            self.look.fruitless = 0;
        } else if self.look.next.is_some_and(|next| next <= now) {
            self.look.fruitless += 1;
        }
        let recent = self.calm && now.0 < self.look.heard.0 + RECENT_US;
        let wanted =
            recent || self.intake.outstanding(self.peer.has_progress) || !self.pending.is_empty();
        self.look.next = (wanted && self.look.fruitless < GIVE_UP_LOOKS).then(|| {
            let doublings = (self.look.fruitless / PATIENCE).min(8);
            let slowest = SLOWEST_LOOK_US.max(self.look.interval_us);
            let interval = if self.calm {
                slowest
            } else {
                (self.look.interval_us << doublings).min(slowest)
            };
            Micros(now.0 + interval)
        });
    }

    /// When the session wants a turn even if nothing comes.
    pub fn next_wakeup(&self) -> Option<Micros> {
        let engine = self.intake.engine().next_wakeup();
        [self.look.next, engine].into_iter().flatten().min()
    }

    /// What the program taught, and where to leave it; none where nothing is kept, or too
    /// little was seen.
    pub fn learned(&mut self) -> Option<(PathBuf, ProfilesConfig, Profile)> {
        let engine = self.intake.engine();
        let enough = engine.stats().launches >= profiles::LEAST_LAUNCHES;
        let (path, config) = self.profile.take().filter(|_| enough)?;
        Some((path, config, engine.profile()))
    }

    /// Why its blocks are where they are.
    pub fn why(&self, question: WhyQuestion) -> SessionWhy {
        let peer = &self.peer;
        SessionWhy {
            session: peer.session,
            pid: peer.pid,
            uid: peer.uid,
            command: peer.command.clone(),
            policy: peer.policy.name().to_owned(),
            ..why::answer(self.intake.engine(), question)
        }
    }

    /// What there is to say about the session now.
    pub fn view(&self) -> SessionView {
        let peer = &self.peer;
        let engine = self.intake.engine();
        let control = self.channel.control_page();
        SessionView {
            session: peer.session,
            pid: peer.pid,
            uid: peer.uid,
            command: peer.command.clone(),
            gpu: peer.gpu.clone(),
            device: peer.device.clone(),
            policy: peer.policy.name().to_owned(),
            budget_bytes: (peer.budget_bytes != 0).then_some(peer.budget_bytes),
            age_s: (clock::now().0.saturating_sub(self.started.0)) as f64 / 1e6,
            snapshot: engine.snapshot().into(),
            stats: engine.stats().into(),
            records: self.intake.counters().records,
            records_rejected: self.intake.counters().rejected,
            records_unknown: self.intake.counters().unknown,
            untracked_bytes: self.intake.counters().untracked_bytes,
            commands_deferred: self.intake.counters().deferred,
            probe_events: self.intake.counters().probe_events,
            events_dropped: self.channel.events_dropped(),
            commands_failed: control.commands_failed.load(Ordering::Relaxed),
            discards_declined: control.discards_declined.load(Ordering::Relaxed),
            held_launches: control.held_launches.load(Ordering::Relaxed),
            held_us: control.held_ns.load(Ordering::Relaxed) / 1_000,
            latency: latency(control),
        }
    }
}

/// The program's own figures of how long commands took to reach the driver. They are the
/// program's word: shown, never relied upon.
fn latency(control: &ControlPage) -> LatencyView {
    let buckets = control
        .latency_buckets
        .each_ref()
        .map(|bucket| bucket.load(Ordering::Relaxed));
    LatencyView::from_buckets(&buckets)
}
