//! The order of events: plays a program through the model under a policy.

use std::iter::Peekable;
use std::vec::IntoIter;

use crate::class::{
    AnyPolicy, DriverNotice, FutureNotice, LaunchNotice, LaunchRecord, LifetimeNotice, Seq, Victim,
};
use crate::machine::{Machine, Rules};
use crate::timeline::{Stall, Timeline};
use crate::trace::{Block, Launch, Program, Step};
use crate::units::Nanos;

use super::host::{Host, Move, Work};
use super::kernel::{Kernel, Next, Wait};
use super::service::Service;
use super::{Desk, Model, Note, Totals};

/// A policy dropped content that the program still needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "content at {address:#x} ({leaves} x 64 KiB of its block) was dropped and needed at {at:?}"
)]
pub struct DataLoss {
    /// First byte of the block.
    pub address: u64,
    /// How many leaves of it.
    pub leaves: u32,
    /// When it was noticed.
    pub at: Nanos,
}

/// A run that could not go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Stopped {
    /// The policy lost data.
    #[error(transparent)]
    Loss(#[from] DataLoss),
    /// Nothing can happen any more: a launch needs more than fits at once.
    #[error(
        "nothing can move any more at {at:?}, launch {launch}: {frames} frames of device memory \
         are too few for this program"
    )]
    Stuck {
        /// When.
        at: Nanos,
        /// The running launch, or the number of launches if none runs.
        launch: u32,
        /// Frames of the device.
        frames: u32,
    },
}

/// What a run leaves behind.
#[derive(Debug)]
pub struct Played {
    /// For each iteration mark, in device order: when it was passed, and the sums by then.
    pub marks: Vec<(Nanos, Totals)>,
    /// The same at the ends of the last launches before the steady iterations and of the last
    /// launch of each.
    pub steady: Vec<(Nanos, Totals)>,
    /// The end of the last launch, and all sums.
    pub end: (Nanos, Totals),
    /// The record, where one was asked for.
    pub timeline: Option<Timeline>,
}

/// Plays `program` on `machine` under `policy` from cold to its end.
///
/// # Errors
/// [`Stopped`] where the policy lost data or the program cannot run in so little memory.
pub fn play(
    program: &Program,
    machine: &Machine,
    policy: &mut AnyPolicy<'_>,
    lifetimes: bool,
    timeline: Option<Timeline>,
) -> Result<Played, Stopped> {
    let steady = program.steady();
    let ends: Vec<u32> = steady
        .first()
        .map(|first| first.start)
        .into_iter()
        .chain(steady.iter().map(|launches| launches.end))
        .collect();
    let mut run = Run {
        model: Model::new(program, machine, lifetimes, timeline),
        policy,
        host: Host::default(),
        kernel: None,
        service: Service::default(),
        marks: Vec::new(),
        ends: ends.into_iter().peekable(),
        steady: Vec::new(),
    };
    run.passed(0);
    run.future(FutureNotice::Begin);
    while run.next()? {}
    Ok(Played {
        marks: run.marks,
        steady: run.steady,
        end: (run.model.now, run.model.totals),
        timeline: run.model.timeline,
    })
}

struct Run<'r, 'p, 'q> {
    model: Model<'p>,
    policy: &'r mut AnyPolicy<'q>,
    host: Host,
    kernel: Option<Kernel>,
    service: Service,
    marks: Vec<(Nanos, Totals)>,
    /// So many launches are over when each of the marks of steady iterations is passed.
    ends: Peekable<IntoIter<u32>>,
    steady: Vec<(Nanos, Totals)>,
}

impl Run<'_, '_, '_> {
    /// Brings everything as far as it comes at this moment, then goes to the next.
    fn next(&mut self) -> Result<bool, Stopped> {
        self.settle();
        if let Some(loss) = self.model.loss {
            return Err(loss.into());
        }
        if self.kernel.is_none() && self.host.queue.is_empty() && self.host.over(&self.model) {
            return Ok(false);
        }
        let until = self.moment();
        let program = self.model.program;
        let next = self.kernel.as_mut().and_then(|kernel| {
            if self.model.machine.rules == Rules::G10 {
                let end = self.model.artifact.launch_end()?;
                return (end <= until).then_some((end, Next::End));
            }
            let accesses = program.accesses(kernel.launch);
            kernel.advance(&mut self.model, accesses, until)
        });
        match next {
            Some((at, Next::Miss(block))) => {
                self.model.now = at;
                self.miss(block);
            }
            Some((at, Next::OnHost(index))) => {
                self.model.now = at;
                self.use_on_host(index);
            }
            Some((at, Next::End)) => {
                self.model.now = at;
                self.end();
            }
            None if until == Nanos::NEVER => {
                let running = self.kernel.map(|kernel| kernel.launch.0);
                return Err(Stopped::Stuck {
                    at: self.model.now,
                    launch: running.unwrap_or(self.model.program.launches().len() as u32),
                    frames: self.model.blocks.capacity(),
                });
            }
            None => {
                self.model.now = until;
                self.transfers();
                self.wakes();
            }
        }
        Ok(true)
    }

    /// The next moment at which something other than the kernel happens.
    fn moment(&self) -> Nanos {
        let model = &self.model;
        let mut at = model.lane_in.moment().min(model.lane_out.moment());
        at = at.min(model.lane_local.end()).min(model.artifact.moment());
        if let Some(until) = self.service.until {
            at = at.min(until);
        }
        if let Some(wake) = model.wakes.peek() {
            at = at.min(wake.0);
        }
        if self.host.time > model.now {
            at = at.min(self.host.time);
        }
        at
    }

    /// Everything that needs no time.
    fn settle(&mut self) {
        loop {
            let mut again = self.tell();
            again |= self.host();
            again |= self.device();
            again |= self.serve();
            let policy = &mut *self.policy;
            self.model.pump(&mut |model| victim(policy, model));
            again |= !self.model.notes.is_empty();
            if !again {
                break;
            }
        }
    }

    fn host(&mut self) -> bool {
        let mut moved = false;
        while let Move::Told(step) = self.host.step(&mut self.model) {
            moved = true;
            self.tell();
            match step {
                Step::Launch(launch) => self.launched(launch),
                Step::Use(region) if self.model.lifetimes => {
                    let seq = self.issued();
                    self.lifetime(LifetimeNotice::Use(region, seq));
                }
                Step::Unuse(region, _) if self.model.lifetimes => {
                    let seq = self.issued();
                    self.lifetime(LifetimeNotice::Unuse(region, seq));
                }
                _ => {}
            }
        }
        moved
    }

    /// How many launches the host has issued: the number of the next.
    fn issued(&self) -> Seq {
        Seq(self.host.issued)
    }

    /// Takes work from the device's queue while no launch runs.
    fn device(&mut self) -> bool {
        let mut moved = false;
        while self.kernel.is_none() {
            let Some(work) = self.host.queue.pop_front() else {
                break;
            };
            moved = true;
            match work {
                Work::Dead(span) => {
                    let pieces = self.model.program.dead(span);
                    for piece in pieces {
                        self.model.bury(piece.block, piece.leaves);
                    }
                    self.future(FutureNotice::Dead(pieces));
                }
                Work::Iteration(number) => {
                    let now = self.model.now;
                    self.marks.push((now, self.model.totals));
                    if let Some(timeline) = &mut self.model.timeline {
                        timeline.iteration(number, now);
                    }
                }
                Work::Launch(launch) => self.start(launch),
            }
        }
        moved
    }

    fn start(&mut self, launch: Launch) {
        let program = self.model.program;
        let accesses = program.accesses(launch);
        if self.model.machine.rules == Rules::G10 {
            self.model.artifact_content(accesses);
        }
        match &mut *self.policy {
            AnyPolicy::Fault(_) => {}
            AnyPolicy::Launch(_) | AnyPolicy::Lifetime(_) => {
                self.launch(LaunchNotice::Started(Seq(launch.0)));
            }
            AnyPolicy::Future(_) => self.future(FutureNotice::Starting(launch)),
        }
        let info = program.launch(launch);
        self.kernel = Some(Kernel::new(launch, self.model.now, info.time, accesses));
        if self.model.machine.rules == Rules::G10 {
            let policy = &mut *self.policy;
            self.model.pump(&mut |model| victim(policy, model));
            let faults = self.model.artifact_start(launch.0, info.time, accesses);
            if !faults.is_empty() {
                self.driver(DriverNotice::Faults(&faults));
            }
        }
    }

    /// So many launches are over.
    fn passed(&mut self, launches: u32) {
        while self.ends.next_if_eq(&launches).is_some() {
            self.steady.push((self.model.now, self.model.totals));
        }
    }

    fn end(&mut self) {
        let Some(kernel) = self.kernel.take() else {
            return;
        };
        let launch = kernel.launch;
        if let Some(timeline) = &mut self.model.timeline {
            timeline.kernel(launch, kernel.started, self.model.now);
        }
        if self.model.machine.rules == Rules::G10 {
            let (program, time) = (self.model.program, self.model.program.launch(launch).time);
            self.model
                .artifact_end(kernel.started, time, program.accesses(launch));
        }
        self.passed(launch.0 + 1);
        self.host.ahead -= 1;
        match &mut *self.policy {
            AnyPolicy::Fault(_) => {}
            AnyPolicy::Launch(_) | AnyPolicy::Lifetime(_) => {
                self.launch(LaunchNotice::Finished(Seq(launch.0)));
            }
            AnyPolicy::Future(_) => self.future(FutureNotice::Finished(launch)),
        }
    }

    /// The running launch uses something on the host.
    fn use_on_host(&mut self, index: usize) {
        let Some(kernel) = &mut self.kernel else {
            return;
        };
        let access = self.model.program.accesses(kernel.launch)[index];
        let until = self.model.use_on_host(&access);
        kernel.uses_on_host_until(until);
    }

    /// The running launch misses something: it waits for what is under way, or faults.
    fn miss(&mut self, block: Block) {
        let now = self.model.now;
        let program = self.model.program;
        let Some(kernel) = &mut self.kernel else {
            return;
        };
        if self.model.under_way(block) {
            kernel.wait = Some((now, Wait::Transfer(block)));
            return;
        }
        kernel.wait = Some((now, Wait::Service));
        let ahead = kernel.rest(program.accesses(kernel.launch));
        let batch = self.service.begin(&mut self.model, ahead).to_vec();
        self.driver(DriverNotice::Faults(&batch));
    }

    /// Lets the fault handler go on, and the launch, if what it waits for is there.
    fn serve(&mut self) -> bool {
        let policy = &mut *self.policy;
        let served = self
            .service
            .advance(&mut self.model, &mut |model| victim(policy, model));
        let Some(kernel) = &mut self.kernel else {
            return served;
        };
        let ready = match kernel.wait {
            None => false,
            Some((_, Wait::Service)) => served,
            Some((_, Wait::Transfer(block))) => !self.model.under_way(block),
        };
        if ready && let Some((since, why)) = kernel.resume(self.model.now) {
            let now = self.model.now;
            self.model.totals.stall += now - since;
            if let Some(timeline) = &mut self.model.timeline {
                let why = match why {
                    Wait::Service => Stall::Fault,
                    Wait::Transfer(_) => Stall::Late,
                };
                timeline.stall(why, since, now);
            }
            if let Wait::Transfer(block) = why {
                let unused = self.model.blocks.get(block).unused;
                self.model.totals.prefetch_late += u64::from(unused);
            }
            // It touches what it waited for before anything can take it away again.
            let accesses = self.model.program.accesses(kernel.launch);
            match kernel.advance(&mut self.model, accesses, now) {
                Some((_, Next::Miss(block))) => self.miss(block),
                Some((_, Next::OnHost(index))) => self.use_on_host(index),
                Some((_, Next::End)) => self.end(),
                None => {}
            }
        }
        ready || served
    }

    /// Takes in the transfers that end now.
    fn transfers(&mut self) {
        let now = self.model.now;
        if self.model.machine.rules == Rules::G10 {
            self.model.artifact_transfers();
        }
        self.model.lane_in.forget_accesses(now);
        self.model.lane_out.forget_accesses(now);
        if self.model.lane_out.end() <= now
            && let Some(current) = self.model.lane_out.current.take()
        {
            self.model.left(current.transfer, current.start);
        }
        if self.model.lane_in.end() <= now
            && let Some(current) = self.model.lane_in.current.take()
        {
            self.model.came(current.transfer, current.start);
        }
        if self.model.lane_local.end() <= now
            && let Some(current) = self.model.lane_local.current.take()
        {
            self.model.came(current.transfer, current.start);
        }
    }

    fn wakes(&mut self) {
        let now = self.model.now;
        let mut woken = false;
        while self.model.wakes.peek().is_some_and(|wake| wake.0 <= now) {
            self.model.wakes.pop();
            woken = true;
        }
        if woken {
            self.driver(DriverNotice::Wake);
        }
    }

    /// Tells the policy what has happened.
    fn tell(&mut self) -> bool {
        let mut told = false;
        while let Some(note) = self.model.notes.pop_front() {
            told = true;
            let notice = match note {
                Note::Alloc(region) => DriverNotice::Alloc(region),
                Note::Free(region) => DriverNotice::Free(region),
                Note::HostFault(block) => DriverNotice::HostFault(block),
                Note::Arrived(block, bytes, by) => DriverNotice::Arrived { block, bytes, by },
                Note::Evicted(block, bytes, by) => DriverNotice::Evicted { block, bytes, by },
                Note::Done(ticket) => DriverNotice::Done(ticket),
            };
            self.driver(notice);
        }
        told
    }

    fn driver(&mut self, notice: DriverNotice<'_>) {
        let desk = &mut Desk::new(&mut self.model);
        match &mut *self.policy {
            AnyPolicy::Fault(policy) => policy.notice(notice, desk),
            AnyPolicy::Launch(policy) => policy.notice(LaunchNotice::Driver(notice), desk),
            AnyPolicy::Lifetime(policy) => {
                let notice = LifetimeNotice::Launch(LaunchNotice::Driver(notice));
                policy.notice(notice, desk);
            }
            AnyPolicy::Future(policy) => policy.notice(FutureNotice::Driver(notice), desk),
        }
    }

    fn launched(&mut self, launch: Launch) {
        if matches!(self.policy, AnyPolicy::Fault(_) | AnyPolicy::Future(_)) {
            return;
        }
        let program = self.model.program;
        let info = program.launch(launch);
        self.launch(LaunchNotice::Launched(LaunchRecord {
            seq: Seq(launch.0),
            name: program.kernel_name(launch),
            signature: info.signature,
            pointers: program.pointers(launch),
            varies: info.varies,
            call: program.call(launch),
        }));
    }

    fn launch(&mut self, notice: LaunchNotice<'_>) {
        let desk = &mut Desk::new(&mut self.model);
        match &mut *self.policy {
            AnyPolicy::Launch(policy) => policy.notice(notice, desk),
            AnyPolicy::Lifetime(policy) => policy.notice(LifetimeNotice::Launch(notice), desk),
            AnyPolicy::Fault(_) | AnyPolicy::Future(_) => {}
        }
    }

    fn lifetime(&mut self, notice: LifetimeNotice<'_>) {
        if let AnyPolicy::Lifetime(policy) = &mut *self.policy {
            policy.notice(notice, &mut Desk::new(&mut self.model));
        }
    }

    fn future(&mut self, notice: FutureNotice<'_>) {
        if let AnyPolicy::Future(policy) = &mut *self.policy {
            policy.notice(notice, &mut Desk::new(&mut self.model));
        }
    }
}

/// Which block leaves: the policy's choice where it has one that can, else the driver's.
fn victim(policy: &mut AnyPolicy<'_>, model: &mut Model<'_>) -> Option<Block> {
    let prefetch = model.artifact.room_for_prefetch;
    let desk = Desk::new(model);
    if prefetch && let AnyPolicy::Future(policy) = policy {
        match policy.victim_of_prefetch(&desk) {
            Victim::AsForFault => {}
            Victim::Nobody => return None,
            Victim::Block(block) => return Some(block).filter(|block| model.evictable(*block)),
        }
    }
    let desk = Desk::new(model);
    let chosen = match policy {
        AnyPolicy::Fault(policy) => policy.victim(&desk),
        AnyPolicy::Launch(policy) => policy.victim(&desk),
        AnyPolicy::Lifetime(policy) => policy.victim(&desk),
        AnyPolicy::Future(policy) => policy.victim(&desk),
    };
    chosen
        .filter(|block| model.evictable(*block))
        .or_else(|| model.driver_victim())
}
