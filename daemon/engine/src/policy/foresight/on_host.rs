//! Which allocations launches use where they lie, over the link.
//!
//! What nobody can foretell is left to faults. Where the accesses are also sparse, faults are a
//! bad bargain: each brings pages of 64 KiB for a few bytes, and takes the 2 MiB of another block
//! that is as likely to be wanted next. So an allocation whose visits to the device were short and
//! of little use ([`crate::world::visits`]) is left on the host: the device maps its pages and
//! accesses them over the link. (Migration or remote access, by what is seen of a program: HELM,
//! SC 2025, chooses so among the driver's policies; access counters, Ganguly et al., IPDPS 2020,
//! in the device.) What of it is on the device stays there, and is fetched whole, so that frames
//! hold what they can. So is one of which whole blocks are used, where the device is only a little
//! too small and faults bring again a multiple of what has no room ([`crate::world::churn`]).
//!
//! Whether that was right is measured: if launches take longer than the same ones did, it is taken
//! back, and not tried again for many times as long. Where much has no room at all they must take much
//! longer for that: a turn that is as short as a layer is compared with another one that did not do
//! quite the same. Launches tell nothing of what none of them
//! was given a pointer to. Before the program is known to repeat itself only other launches can be
//! compared, and that verdict holds until it is. What they took before may have been that of a
//! start, in which everything is slow. So the two are compared again later, the other way round:
//! the allocations migrate for a while, which ends as soon as that cannot be faster any more than
//! the same launches were before. Who is faster so is tried on the host once more, lest it was the
//! launches that had changed. Such a comparison costs a turn of the program at most. It is done
//! after a few turns, then after many, and each time after twice as many; and soon where launches
//! begin to take much longer than they did on the host, for more than a turn: what is popular now
//! is not on the device, and migrating for a while brings it.
//!
//! What a launch is known to use, in other allocations, is fetched before as ever, and may have
//! the frames.

use std::collections::VecDeque;

use super::marks::{Marks, Moment, STRIDE, Stretch};
use crate::command::{Command, Operation, Queue};
use crate::decision::Reason;
use crate::stats::Stats;
use crate::units::{BLOCK_BYTES, BlockId, Micros, Range};
use crate::world::World;
use crate::world::visits::Stay;
use crate::world::window::Pending;

/// Launches take longer only if they do by more than this: what they do is not quite the same in
/// each turn.
const NOISE: f64 = 1.05;
/// The first time only if by more than this, in a program that repeats itself and of which more than
/// one in so many of the device's blocks have no room: it is likely then that they had better stay, a
/// yes is compared again after a few turns, and a no stands for many. (Where little is away, a program
/// that nearly fits was left 10 to 30 % slower so.)
const DOUBT: f64 = 1.25;
const MUCH_AWAY: u64 = 8;
/// Launches after which a program repeats itself, at least, if what it does then is compared.
const TURN: u64 = 8;
/// Where it does not, as many launches are compared as made so many visits, whose number is known
/// to about [`NOISE`] then.
const VISITS: u64 = 256;
/// Launches that are compared there at most.
const LAUNCHES: u64 = 16;
/// As many are compared where as few as would do take so many times as long as others: they do not
/// do the same.
const VARIES: f64 = 2.0;
/// Turns of the program that frames are given to settle.
const SETTLE: u64 = 2;
/// Turns after which migrating is compared for the first time, and after which again: it costs one.
/// What is on the device first is what happened to be there in a start; migrating for a while brings
/// what is used.
const FIRST: u64 = 4;
const COMPARE: u64 = 16;
/// Launches that take so many times as long as they did do something else: other rows are popular,
/// and not on the device.
const RISEN: f64 = 1.25;
/// After a comparison that changed nothing it takes so many times as long to the next one for that.
const FRUITLESS: u64 = 4;
/// Blocks that are used so many times as often as others are worth their frames, and to be brought
/// there.
const HOT: f64 = 4.0;
/// Launches for which nobody need be given a pointer to what is on trial, all the same.
const UNUSED: u64 = 4096;
/// Nobody is expected to be so many times as fast in the rest of a trial.
const MAKES_UP: f64 = 2.0;
/// After a disappointment nothing is tried for so many times as long as the trial took, and for
/// four times that after each further one: all of them cost little. Of several that were tried
/// together one may have been wrong: as many wait so much shorter, but [`LEAST_PATIENCE`], and are
/// tried one by one then.
const PATIENCE: u64 = 32;
const LEAST_PATIENCE: u64 = 2;

/// Why allocations are treated otherwise than before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Question {
    /// They migrated, and stay on the host.
    Stay,
    /// They stayed on the host, and migrate.
    Migrate,
    /// They migrated for a while, which was faster than before, and stay on the host again.
    StayAgain,
}

/// Allocations that are treated otherwise, to see whether that is faster.
#[derive(Debug)]
struct Trial {
    addresses: Vec<u64>,
    question: Question,
    /// When launches came how far before, after how many they repeat, if they do, and what one
    /// took, microseconds.
    marks: Marks,
    turn: Option<u64>,
    launch_us: f64,
    /// Over how many launches that is compared.
    launches: u64,
    /// When it began, when the last of them joined, and how long it takes from then on to bring
    /// what of them is partly on the device, microseconds,
    begun: Moment,
    joined: Moment,
    rest_us: f64,
    /// and when the frames were settled.
    since: Option<Moment>,
    /// The first launch since then that was given a pointer to what is on trial, or the last one
    /// before those that are compared, if the one that ran by then was given one.
    used: Option<u64>,
    /// Turns after which to compare again, if they stay on the host, and if launches take much
    /// longer.
    wait: u64,
    soon: u64,
}

impl Trial {
    /// Of launches before `floor`, none since the frames were settled used what is on trial: what
    /// they took says nothing of it. Where none did for long, pointers do not tell.
    fn is_unused(&self, floor: u64) -> bool {
        let unused = self.used.is_none_or(|launch| launch >= floor);
        unused && floor < self.begun.0 + UNUSED
    }

    /// The launch was given a pointer to what is on trial.
    fn is_used_by(&self, launch: &Pending, world: &World) -> bool {
        launch.arguments.iter().any(|argument| {
            let allocation = world.memory.allocation_at(argument.address);
            allocation.is_some_and(|a| self.addresses.contains(&a.range.address))
        })
    }

    /// What the launches from `first` on, up to before `end`, took before, microseconds.
    fn before_us(&self, first: u64, end: u64) -> f64 {
        let took = self.turn.and_then(|turn| self.marks.took(first, end, turn));
        took.unwrap_or_else(|| self.launch_us * end.saturating_sub(first) as f64)
    }
}

/// Allocations that stay on the host.
#[derive(Debug)]
struct Kept {
    addresses: Vec<u64>,
    /// Launches by which to compare where the program does not repeat itself.
    launches: u64,
    /// Launches after which it does, when that was last looked at.
    turn: Option<u64>,
    /// The oldest launch that was not over when that was last done, and after how many turns to
    /// do it again.
    since: u64,
    wait: u64,
    /// The least that a launch took since, microseconds, and what it took when they were compared.
    least_us: f64,
    compared_us: f64,
    /// After how many turns to do it again where launches take much longer than that, and since
    /// which launch they do.
    soon: u64,
    risen: Option<u64>,
    /// What a launch took when they migrated last, and that was slower.
    migrating_us: f64,
}

impl Kept {
    fn new(addresses: Vec<u64>, (turn, since): (Option<u64>, u64), compared_us: f64) -> Self {
        Self {
            addresses,
            launches: Marks::REACH,
            turn,
            since,
            wait: SETTLE,
            least_us: f64::INFINITY,
            compared_us,
            soon: SETTLE,
            risen: None,
            migrating_us: f64::INFINITY,
        }
    }

    /// The launches over which to compare now, if it is time, and what they took last.
    fn due(&mut self, marks: &Marks, now: Moment, world: &World) -> Option<(u64, Stretch)> {
        let turn = turn(world);
        let launches = turn.map_or(self.launches, |turn| marks.turns(turn));
        if turn != self.turn {
            (self.turn, self.least_us) = (turn, f64::INFINITY);
        }
        // What is compared are turns of the same launches.
        if turn.is_some() && world.history.held() < launches {
            return None;
        }
        let passed = now.0.saturating_sub(self.since);
        if passed < launches {
            return None;
        }
        let last = marks.newest(launches)?;
        self.least_us = self.least_us.min(last.launch_us);
        // It was worth while to compare: what migrated meanwhile is what is used now.
        if self.least_us * RISEN < self.compared_us {
            self.soon = SETTLE;
        }
        let risen = last.launch_us > self.least_us * RISEN;
        // What one turn does otherwise is over with it.
        self.risen = if risen {
            self.risen.or(Some(now.0))
        } else {
            None
        };
        let lasts = self.risen.is_some_and(|since| now.0 >= since + launches);
        let wait = if last.launch_us > self.migrating_us * RISEN {
            SETTLE
        } else if lasts {
            self.wait.min(self.soon)
        } else {
            self.wait
        };
        (passed >= launches.saturating_mul(wait)).then_some((launches, last))
    }
}

/// What is under way.
#[derive(Debug, Default)]
pub(crate) struct OnHost {
    /// Blocks of which a part is on the device, to be fetched whole.
    partly: VecDeque<BlockId>,
    trial: Option<Trial>,
    kept: Vec<Kept>,
    marks: Marks,
    /// The oldest launch that was not over when the last trial ended that was slower: what launches
    /// took until then is not what they take.
    slower: Option<u64>,
}

/// The launches after which the program repeats itself, where they are enough to compare by:
/// whoever launches the same again and again does something else each time.
pub(super) fn turn(world: &World) -> Option<u64> {
    world.history.lag().filter(|&turn| turn >= TURN)
}

impl OnHost {
    /// A launch begins.
    pub(crate) fn started(&mut self, world: &World) {
        let Some(trial) = &mut self.trial else {
            return;
        };
        let Some(launch) = world.window.front().filter(|_| trial.used.is_none()) else {
            return;
        };
        if trial.since.is_some() && trial.is_used_by(launch, world) {
            trial.used = Some(launch.position);
        }
    }

    /// Gives the commands that are due.
    pub(crate) fn consider(
        &mut self,
        now: Micros,
        world: &mut World,
        stats: &mut Stats,
        commands: &mut Vec<Command>,
    ) {
        if !world.use_on_host || !world.probes {
            return;
        }
        renew(now, world, stats, commands);
        if let Some(address) = world.visits.first_renewed() {
            self.forget(address);
            world.visits.set(address, Stay::Migrates);
            let_migrate(now, address, Reason::Renewed, world, stats, commands);
        }
        self.marks.pass((world.floor(), now), turn(world));
        world.visits.lack(away(world));
        self.resume(now, world, stats, commands);
        self.fetch_rest(now, world, stats, commands);
        if self.trial.is_some() {
            self.join(now, world, stats, commands);
            self.judge(now, world, stats, commands);
        } else if !self.compare(now, world, stats, commands) {
            self.find(now, world, stats, commands);
        }
    }

    /// Leaves on the host what stayed there in an earlier run, once faults would bring it. It is
    /// compared soon.
    fn resume(
        &mut self,
        now: Micros,
        world: &mut World,
        stats: &mut Stats,
        commands: &mut Vec<Command>,
    ) {
        let addresses = world.visits.take_missed();
        if addresses.is_empty() {
            return;
        }
        self.leave(now, &addresses, world, stats, commands);
        let begun = (turn(world), world.floor());
        self.kept.push(Kept::new(addresses, begun, 0.0));
    }

    /// Leaves on the host what faults brought for little.
    fn find(
        &mut self,
        now: Micros,
        world: &mut World,
        stats: &mut Stats,
        commands: &mut Vec<Command>,
    ) {
        let (moment, turn) = ((world.floor(), now), turn(world));
        let launches = turn.map(|turn| self.marks.turns(turn));
        let known = |launches| self.marks.last(launches, moment).is_some();
        if launches.is_some_and(|launches| !known(launches)) {
            return;
        }
        let several = launches.and_then(|launches| self.marks.several(launches, VARIES));
        let launches = several.or(launches);
        let apart = |slower: u64| moment.0 >= slower + launches.unwrap_or(LAUNCHES);
        if !self.slower.is_none_or(apart) {
            return;
        }
        let Some(found) = world.visits.sparse(world.capacity, moment, turn) else {
            return;
        };
        let seen = moment.0.saturating_sub(found.since);
        let few = (seen * VISITS / found.count.max(1)).clamp(STRIDE, LAUNCHES);
        let few = if self.marks.vary(few, VARIES) {
            LAUNCHES
        } else {
            few
        };
        let launches = launches.unwrap_or(few);
        let Some(mut last) = self.marks.last(launches, moment) else {
            return;
        };
        // Visits are enough the sooner the more of them there happen to be: for that alone launches
        // took longer lately than they do.
        if turn.is_none()
            && let Some(all) = self.marks.last(seen.min(Marks::HELD), moment)
        {
            last.launch_us = last.launch_us.min(all.launch_us);
        }
        self.begin(Trial {
            addresses: Vec::new(),
            question: Question::Stay,
            marks: Marks::default(),
            turn: several.or(turn),
            launch_us: last.launch_us,
            launches,
            begun: moment,
            joined: moment,
            rest_us: 0.0,
            since: None,
            used: None,
            wait: FIRST,
            soon: SETTLE,
        });
        let addresses = coldest(world, &found.visited);
        self.stay(now, addresses, world, stats, commands);
    }

    /// What is found soon after others is tried together with them, from then on: while they are
    /// tried nothing else can be.
    fn join(
        &mut self,
        now: Micros,
        world: &mut World,
        stats: &mut Stats,
        commands: &mut Vec<Command>,
    ) {
        let (moment, turn) = ((world.floor(), now), turn(world));
        let young = |trial: &&Trial| {
            let passed = moment.0.saturating_sub(trial.begun.0);
            let begins = passed < 2 * SETTLE * trial.launches || trial.is_unused(moment.0);
            trial.question == Question::Stay && begins
        };
        if self.trial.as_ref().filter(young).is_none() {
            return;
        }
        let Some(found) = world.visits.sparse(world.capacity, moment, turn) else {
            return;
        };
        let addresses = coldest(world, &found.visited);
        self.leave(now, &addresses, world, stats, commands);
        if let Some(trial) = &mut self.trial {
            trial.addresses.extend(addresses);
            (trial.since, trial.used) = (None, None);
            (trial.joined, trial.rest_us) = (moment, rest_us(&self.partly, world));
        }
    }

    /// Begins a trial, by what launches took until now.
    fn begin(&mut self, mut trial: Trial) {
        self.marks.end(trial.begun);
        trial.marks = self.marks.clone();
        self.trial = Some(trial);
    }

    /// Allocations of the trial stay on the host.
    fn stay(
        &mut self,
        now: Micros,
        addresses: Vec<u64>,
        world: &mut World,
        stats: &mut Stats,
        commands: &mut Vec<Command>,
    ) {
        self.leave(now, &addresses, world, stats, commands);
        if let Some(trial) = &mut self.trial {
            trial.addresses = addresses;
            trial.rest_us = rest_us(&self.partly, world);
        }
    }

    fn leave(
        &mut self,
        now: Micros,
        addresses: &[u64],
        world: &mut World,
        stats: &mut Stats,
        commands: &mut Vec<Command>,
    ) {
        for &address in addresses {
            world.visits.set(address, Stay::Stays);
            for slot in slots_of(world, address) {
                let operation = Operation::UseOnHost;
                world.order(now, operation, slot, Reason::Sparse, stats, commands);
                let block = world.blocks.get(slot);
                if block.is_partly_there() {
                    self.partly.push_back(block.id);
                }
            }
        }
    }

    fn fetch_rest(
        &mut self,
        now: Micros,
        world: &mut World,
        stats: &mut Stats,
        commands: &mut Vec<Command>,
    ) {
        while world.orders.bytes(Queue::In) < world.inflight_limit(Queue::In) {
            let Some(id) = self.partly.pop_front() else {
                return;
            };
            let found = world.blocks.find(id);
            let Some(slot) = found.filter(|&slot| {
                let block = world.blocks.get(slot);
                block.stays && block.is_partly_there()
            }) else {
                continue;
            };
            let operation = Operation::Prefetch;
            world.order(now, operation, slot, Reason::Partly, stats, commands);
            // No launch is expected to use it: what comes of it says nothing of predictions.
            world.blocks.get_mut(slot).unproven = false;
            world.usefulness.taken_back(BLOCK_BYTES);
        }
    }

    /// Lets migrate for a while what is due to be compared. False if nothing is.
    fn compare(
        &mut self,
        now: Micros,
        world: &mut World,
        stats: &mut Stats,
        commands: &mut Vec<Command>,
    ) -> bool {
        let (moment, turn) = ((world.floor(), now), turn(world));
        let mut kept = self.kept.iter_mut().enumerate();
        let due = kept.find_map(|(index, kept)| {
            let (launches, last) = kept.due(&self.marks, moment, world)?;
            Some((index, launches, last))
        });
        let Some((index, launches, last)) = due else {
            return false;
        };
        let Kept {
            mut addresses,
            since,
            wait,
            soon,
            ..
        } = self.kept.swap_remove(index);
        addresses.retain(|&address| world.visits.is(address, Stay::Stays));
        if addresses.is_empty() {
            return false;
        }
        for &address in &addresses {
            world.visits.set(address, Stay::Compared);
            remember_renewed(address, world);
            let_migrate(now, address, Reason::Compared, world, stats, commands);
        }
        let trial = Trial {
            addresses,
            question: Question::Migrate,
            marks: Marks::default(),
            turn,
            launch_us: last.launch_us,
            launches,
            begun: moment,
            joined: moment,
            rest_us: 0.0,
            since: Some(moment),
            used: None,
            // What came early says nothing of how often it is worth while.
            wait: if moment.0 - since < launches * wait {
                wait
            } else {
                (wait * 2).max(COMPARE)
            },
            soon,
        };
        self.begin(trial);
        true
    }

    /// They stay on the host; a launch took so long when that was last in question. Those of which
    /// there is no doubt are compared together.
    fn keep(&mut self, mut trial: Trial, launch_us: f64, floor: u64) -> Option<&mut Kept> {
        let mut kept = self.kept.iter_mut();
        if trial.wait >= COMPARE
            && let Some(kept) = kept.find(|kept| kept.wait >= COMPARE)
        {
            kept.addresses.append(&mut trial.addresses);
            kept.least_us = f64::INFINITY;
            return None;
        }
        let (wait, soon) = (trial.wait, trial.soon);
        let kept = Kept::new(trial.addresses, (trial.turn, floor), launch_us);
        self.kept.push(Kept { wait, soon, ..kept });
        self.kept.last_mut()
    }

    /// Compares launches on trial with those before.
    fn judge(
        &mut self,
        now: Micros,
        world: &mut World,
        stats: &mut Stats,
        commands: &mut Vec<Command>,
    ) {
        let Some(trial) = &mut self.trial else {
            return;
        };
        let floor = world.floor();
        let passed_us = |since: Micros| now.0.saturating_sub(since.0) as f64;
        let Some((began, since)) = trial.since else {
            let (joined, at) = trial.joined;
            let window_us = trial.launch_us * trial.launches as f64;
            let late = passed_us(at) > window_us.max(trial.rest_us) * SETTLE as f64;
            let passed = floor.saturating_sub(joined) >= SETTLE * trial.launches;
            let idle = world.orders.bytes(Queue::In) == 0;
            if late || self.partly.is_empty() && (passed || idle) {
                trial.since = Some((floor, now));
            }
            return;
        };
        // Whoever brought it to the host must be faster to bring it back.
        let noise = match trial.question {
            Question::Stay if trial.turn.is_some() && is_much_away(world) => DOUBT,
            Question::Stay | Question::StayAgain => NOISE,
            Question::Migrate => 1.0 / NOISE,
        };
        // Who is late already need not be waited for, nor who could not make up for it in what comes
        // after the launch that runs.
        let all_us = trial.before_us(began, began + trial.launches);
        let rest_us = match trial.question {
            Question::Stay | Question::StayAgain => 0.0,
            Question::Migrate => (all_us - trial.before_us(began, floor + 1)).max(0.0) / MAKES_UP,
        };
        let late = passed_us(since) + rest_us > noise * all_us;
        if floor < began + trial.launches && !late {
            return;
        }
        if trial.question != Question::Migrate && trial.is_unused(floor) {
            // One that runs may take as long as all that are compared did before.
            let runs = world.window.front().filter(|_| late);
            let uses = runs.is_some_and(|launch| trial.is_used_by(launch, world));
            trial.used = floor.checked_sub(1).filter(|_| uses);
            trial.since = Some((floor, now));
            return;
        }
        let slower = late || passed_us(since) > noise * trial.before_us(began, floor);
        let launch_us = passed_us(since) / floor.saturating_sub(began).max(1) as f64;
        let Some(mut trial) = self.trial.take() else {
            return;
        };
        if slower {
            self.slower = Some(floor);
        }
        match (trial.question, slower) {
            (Question::Stay | Question::StayAgain, true) => {
                let took_us = now.0.saturating_sub(trial.begun.1.0);
                let together = trial.addresses.len().max(1) as u64;
                let patience = (PATIENCE / together).max(LEAST_PATIENCE);
                let until = Micros(now.0.saturating_add(took_us.saturating_mul(patience)));
                for address in trial.addresses {
                    world
                        .visits
                        .disappointed(address, now, until, trial.turn.is_none());
                    let_migrate(now, address, Reason::Slower, world, stats, commands);
                }
            }
            (Question::Stay, false) => {
                self.keep(trial, launch_us, floor);
            }
            (Question::StayAgain, false) => {
                trial.soon = SETTLE;
                self.keep(trial, launch_us, floor);
            }
            (Question::Migrate, _) => {
                let mut addresses = std::mem::take(&mut trial.addresses);
                addresses.retain(|&address| world.visits.is(address, Stay::Compared));
                if slower {
                    self.stay(now, addresses.clone(), world, stats, commands);
                    (trial.addresses, trial.soon) = (addresses, trial.soon * FRUITLESS);
                    let before_us = trial.launch_us;
                    if let Some(kept) = self.keep(trial, before_us, floor) {
                        kept.migrating_us = launch_us;
                    }
                    return;
                }
                let begun = (floor, now);
                let trial = Trial {
                    question: Question::StayAgain,
                    marks: Marks::default(),
                    launch_us,
                    begun,
                    since: Some(begun),
                    used: None,
                    ..trial
                };
                self.begin(trial);
                self.stay(now, addresses, world, stats, commands);
            }
        }
    }

    /// It is on trial no longer, nor kept.
    fn forget(&mut self, address: u64) {
        let trial = self.trial.iter_mut().map(|trial| &mut trial.addresses);
        let kept = self.kept.iter_mut().map(|kept| &mut kept.addresses);
        for addresses in trial.chain(kept) {
            addresses.retain(|&other| other != address);
        }
    }
}

/// Of these allocations, and how often a launch visited each, those that stay on the host.
/// Whose blocks are used much more often than the others' are is worth their frames: once the
/// others do not come any more, faults bring it to stay.
fn coldest(world: &World, visited: &[(u64, f64)]) -> Vec<u64> {
    // Blocks, those of them on the device, and visits.
    let counts = visited.iter().map(|&(address, visits)| {
        let slots = slots_of(world, address);
        let there = slots.iter().map(|&slot| world.blocks.get(slot));
        let there = there.filter(|block| block.holds_frame()).count();
        (slots.len() as f64, there as f64, visits)
    });
    let counts: Vec<_> = counts.collect();
    let sum = |of: fn(&(f64, f64, f64)) -> f64| counts.iter().map(of).sum::<f64>();
    let hot = HOT * sum(|one| one.2) / sum(|one| one.0).max(1.0);
    let is_hot = |&(blocks, _, visits): &(f64, f64, f64)| visits > hot * blocks;
    let (mut wanted, mut given) = (0.0, 0.0);
    for one in &counts {
        if is_hot(one) {
            wanted += one.0 - one.1;
        } else {
            given += one.1;
        }
    }
    let fit = wanted <= given;
    let all = visited.iter().zip(&counts);
    let cold = all.filter(|(_, one)| !fit || !is_hot(one));
    cold.map(|((address, _), _)| *address).collect()
}

/// Memory that was handed out anew migrates: who uses it now may use all of it. A few blocks of a
/// table's segment, behind its end, say nothing of the table.
fn renew(now: Micros, world: &mut World, stats: &mut Stats, commands: &mut Vec<Command>) {
    for (address, range) in world.visits.take_renewed() {
        let Some(allocation) = world.memory.allocation_at(address) else {
            continue;
        };
        let blocks = allocation.tracked_bytes.div_ceil(BLOCK_BYTES);
        let mut more = 0;
        for id in world.memory.tracked(range).blocks() {
            let found = world.blocks.find(id);
            if let Some(slot) = found.filter(|&slot| world.blocks.get(slot).stays) {
                let operation = Operation::LetMigrate;
                world.order(now, operation, slot, Reason::Renewed, stats, commands);
                more += 1;
            }
        }
        world.visits.migrate(address, more, blocks);
    }
}

/// Of an allocation that stayed, what migrates all the same does so when it stays again.
fn remember_renewed(address: u64, world: &mut World) {
    let mut renewed: Vec<Range> = Vec::new();
    for slot in slots_of(world, address) {
        let block = world.blocks.get(slot);
        if block.stays {
            continue;
        }
        let address = block.id.address();
        match renewed.last_mut() {
            Some(last) if last.end() == address => last.bytes += BLOCK_BYTES,
            _ => renewed.push(Range {
                address,
                bytes: BLOCK_BYTES,
            }),
        }
    }
    for range in renewed {
        world.visits.renewed(address, range);
    }
}

fn let_migrate(
    now: Micros,
    address: u64,
    reason: Reason,
    world: &mut World,
    stats: &mut Stats,
    commands: &mut Vec<Command>,
) {
    for slot in slots_of(world, address) {
        if world.blocks.get(slot).stays {
            world.order(now, Operation::LetMigrate, slot, reason, stats, commands);
        }
    }
}

/// Live blocks that have no room on the device.
fn away(world: &World) -> u64 {
    world.blocks.live().saturating_sub(world.blocks.frames())
}

fn is_much_away(world: &World) -> bool {
    away(world) * MUCH_AWAY > world.capacity
}

/// How long it takes to bring all of so many blocks, microseconds.
fn rest_us(partly: &VecDeque<BlockId>, world: &World) -> f64 {
    (partly.len() as u64 * BLOCK_BYTES) as f64 / world.orders.rate(Queue::In)
}

/// The blocks of the allocation that begins there.
fn slots_of(world: &World, address: u64) -> Vec<u32> {
    let Some(allocation) = world.memory.allocation_at(address) else {
        return Vec::new();
    };
    let range = Range {
        address,
        bytes: allocation.tracked_bytes,
    };
    let found = range.blocks().filter_map(|id| world.blocks.find(id));
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::block::Residency;
    use crate::{Bytes, Config, PolicyKind};

    #[test]
    fn much_is_away_where_more_than_one_in_eight_blocks_of_the_device_is() {
        let is_much = |away: u64| {
            let config = Config::new(PolicyKind::Foresight, Bytes(64 * BLOCK_BYTES));
            let mut world = World::new(&config);
            let parts = [(1, 64, Residency::Device), (65, away, Residency::Host)];
            for (first, count, residency) in parts {
                let range = Range {
                    address: first * BLOCK_BYTES,
                    bytes: count * BLOCK_BYTES,
                };
                world.alloc(range, false, residency, &mut Stats::default());
                for id in range.blocks() {
                    let slot = world.blocks.find(id).expect("it is allocated");
                    world.blocks.set_content(slot, true);
                }
            }
            is_much_away(&world)
        };
        assert!(!is_much(8));
        assert!(is_much(9));
    }
}
