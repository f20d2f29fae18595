//! How far ahead to fetch: learned from whether launches wait.

use std::f64::consts::LN_2;

use crate::command::Queue;
use crate::units::{BLOCK_BYTES, Micros};
use crate::world::World;
use crate::world::block::Residency;

/// How far ahead to fetch, as a share of how far ahead the victim is needed.
///
/// A fetch that is early costs its victim's fetch earlier too: looking far ahead moves
/// more. So it widens only while launches wait although the link has time to spare; where
/// the link is the bottleneck, the shortest reach moves the least. It narrows slowly within
/// a cycle, of which one place may need it, and fast once a whole cycle went by without a
/// wait. Where that brought a wait back it narrows slowly from then on, and each time half as fast,
/// until it is narrower than then. Where a program waits long in a few launches of its cycle, as in
/// the passes of an optimizer after a backward pass that leaves the link idle, it would take a dozen
/// cycles to get there in steps: what the link had to spare before tells how wide it has to be. What
/// the link would have no time for later is fetched whatever the reach ([`super::late`]).
#[derive(Debug)]
pub(crate) struct Reach {
    share: f64,
    missed: bool,
    /// Launches since one waited, as far as it was looked at.
    quiet: u64,
    /// It narrowed after a whole cycle without a wait, and was not found too narrow since.
    tried: bool,
    /// The share at which that brought a wait back, and how many times as slowly it narrows since.
    failed: Option<f64>,
    patience: u64,
    looked: u64,
    issued: u64,
    since: Micros,
    last: Micros,
    idle: bool,
    idle_us: u64,
    /// What launches had used on the host when it was last looked at.
    remote_bytes: u64,
    /// The share that the exchange put off last would have taken.
    put_off: Option<f64>,
    spared: Spared,
    /// Blocks whose content lay on the host when launches that use it began, since it was last looked
    /// at, and blocks that came while launches waited, until then ([`World::awaited`]).
    lacked: u64,
    awaited: u64,
}

/// For how long the link had nothing to bring while exchanges were put off, in about the last
/// cycle, microseconds: by the share that would have allowed them, from narrow to wide.
#[derive(Debug, Default)]
struct Spared {
    us: [f64; Self::STEPS],
}

impl Spared {
    const STEPS: usize = 17;
    /// Each step is wider than the one before by the fourth root of two, from the narrowest share
    /// to the widest.
    const PER_DOUBLING: f64 = 4.0;
    const FIRST: f64 = Reach::NARROWEST;

    fn add(&mut self, share: f64, us: u64) {
        let step = ((share / Self::FIRST).log2() * Self::PER_DOUBLING).ceil();
        let step = step.clamp(0.0, (Self::STEPS - 1) as f64);
        self.us[step as usize] += us as f64;
    }

    /// The narrowest share with which the link would have had so much more time, or all that there
    /// is, and how much; that time is not there for the next wait.
    fn serve(&mut self, wait_us: f64) -> (f64, f64) {
        let mut left = wait_us;
        let mut share = 0.0;
        for (step, spare) in self.us.iter_mut().enumerate() {
            let taken = spare.min(left);
            if taken > 0.0 {
                share = Self::FIRST * (step as f64 / Self::PER_DOUBLING).exp2();
            }
            *spare -= taken;
            left -= taken;
        }
        (share, wait_us - left)
    }

    /// So large a part of a cycle went by.
    fn fade(&mut self, part: f64) {
        for spare in &mut self.us {
            *spare *= 1.0 - part.clamp(0.0, 1.0);
        }
    }
}

impl Default for Reach {
    fn default() -> Self {
        Self {
            share: 0.25,
            missed: false,
            quiet: 0,
            tried: false,
            failed: None,
            patience: 1,
            looked: 0,
            issued: 0,
            since: Micros(0),
            last: Micros(0),
            idle: true,
            idle_us: 0,
            remote_bytes: 0,
            put_off: None,
            spared: Spared::default(),
            lacked: 0,
            awaited: 0,
        }
    }
}

impl Reach {
    /// The share's bounds; the narrowest one only after whole cycles without a wait.
    const NARROWEST: f64 = 0.0625;
    const NARROW: f64 = 0.125;
    const WIDE: f64 = 1.0;
    /// Share of the time without a prefetch under way above which the link has time: what it does
    /// not bring then has to wait for it later.
    const SPARE: f64 = 0.04;
    /// Launches after which it is looked at.
    const LAUNCHES: u64 = 64;
    /// Or when one in so many of the device's blocks were prefetched.
    const ISSUED_SHARE: u64 = 1;
    /// Where narrowing brought a wait back it narrows no more than so many times as slowly, until
    /// it is so many times as narrow as then.
    const MOST_PATIENCE: u64 = 16;
    const NARROWER: f64 = 1.25;

    /// A launch begins: it waits if a block of it is not there. While no cycle is known
    /// nothing is fetched ahead, so that no reach would have helped.
    pub(crate) fn started(&mut self, world: &World) {
        let Some(launch) = world.window.front() else {
            return;
        };
        if world.history.lag().is_none() {
            return;
        }
        for slot in world.slots(&launch.set) {
            let block = world.blocks.get(slot);
            match block.residency {
                Residency::Device | Residency::MovingOut => continue,
                // What is under way counts when it comes: of several launches that wait one after the
                // other, many are seen to begin when they are over.
                Residency::Unpopulated | Residency::MovingIn => {}
                Residency::Host => self.lacked += u64::from(block.content),
            }
            self.missed = true;
        }
    }

    /// Widens or narrows, once in a while.
    pub(crate) fn adapt(&mut self, now: Micros, world: &World) {
        let put_off = self.put_off.take();
        if self.idle {
            let idle_us = now.0.saturating_sub(self.last.0);
            self.idle_us += idle_us;
            let on_host = world.remote_bytes > self.remote_bytes;
            if let Some(share) = put_off.filter(|_| !on_host) {
                self.spared.add(share, idle_us);
            }
        }
        self.last = now;
        self.idle = world.orders.bytes(Queue::In) == 0;
        let head = world.floor();
        let issued = world.usefulness.issued_bytes / BLOCK_BYTES;
        let few = issued < self.issued + world.capacity / Self::ISSUED_SHARE;
        if head < self.looked + Self::LAUNCHES && few {
            return;
        }
        self.issued = issued;
        let whole_us = now.0.saturating_sub(self.since.0).max(1);
        // The link is as busy with what launches use on the host.
        let remote_bytes = world.remote_bytes - self.remote_bytes;
        let idle_us = self.idle_us as f64 - remote_bytes as f64 / world.orders.rate(Queue::In);
        let spare = idle_us / whole_us as f64 > Self::SPARE;
        let launches = head.saturating_sub(self.looked);
        self.looked = head;
        let missed = std::mem::take(&mut self.missed);
        if missed {
            // What the link had to spare since the last wait could have served this one.
            self.remote_bytes = world.remote_bytes;
            self.since = now;
            self.idle_us = 0;
        }
        let lag = world.history.lag();
        self.learn(missed, spare, launches, lag);
        let awaited = world.awaited - std::mem::replace(&mut self.awaited, world.awaited);
        let lacked = (std::mem::take(&mut self.lacked) + awaited) * BLOCK_BYTES;
        let wait_us = lacked as f64 / world.orders.rate(Queue::In);
        self.waited(wait_us, whole_us as f64);
        let cycle = lag.map_or(1.0, |lag| lag.max(1) as f64);
        self.spared.fade(launches as f64 / cycle);
    }

    /// Launches waited for the link for so long, `whole_us` after they last did.
    fn waited(&mut self, wait_us: f64, whole_us: f64) {
        let (share, served_us) = self.spared.serve(wait_us);
        // A short wait is not worth what a jump moves.
        if served_us > Self::SPARE * whole_us && share > self.share {
            self.too_narrow();
            // It will have narrowed when the link is idle again.
            self.share = (share * Self::NARROWER).min(Self::WIDE);
        }
    }

    /// A launch waited that would not have with a wider share.
    fn too_narrow(&mut self) {
        if std::mem::take(&mut self.tried) {
            self.failed = Some(self.share);
            self.patience = (2 * self.patience).min(Self::MOST_PATIENCE);
        }
    }

    /// Takes in whether one of so many launches waited, and whether the link had time to spare.
    fn learn(&mut self, missed: bool, spare: bool, launches: u64, lag: Option<u64>) {
        self.quiet = if missed { 0 } else { self.quiet + launches };
        if missed && spare {
            self.too_narrow();
        }
        let cycles = lag.map_or(1.0, |lag| launches as f64 / lag.max(1) as f64);
        let whole = lag.is_some_and(|lag| self.quiet > lag);
        self.share = match (missed, spare) {
            (true, true) => (self.share * 1.5).min(Self::WIDE),
            (true, false) => self.narrowed(0.9),
            _ if whole => self.narrower(cycles),
            // By a tenth in a cycle, if that is long.
            _ => self.narrowed(0.9_f64.powf(cycles).max(0.97)),
        };
    }

    /// The share narrowed in so much of a cycle, after a whole one without a wait.
    fn narrower(&mut self, cycles: f64) -> f64 {
        self.tried = true;
        let factor = if self.failed.is_none() {
            // By half in a cycle.
            (1.0 - LN_2 * cycles).clamp(0.5, 0.97)
        } else {
            0.9_f64.powf(cycles / self.patience as f64).max(0.97)
        };
        let share = (self.share * factor).max(Self::NARROWEST);
        let over = |failed| share * Self::NARROWER < failed || share == Self::NARROWEST;
        if self.failed.is_some_and(over) {
            (self.failed, self.patience) = (None, 1);
        }
        share
    }

    /// The share narrowed by a factor, within a cycle.
    fn narrowed(&self, factor: f64) -> f64 {
        (self.share * factor).max(Self::NARROW.min(self.share))
    }

    /// Is it worth to fetch what is needed at `need` by evicting what is needed at `victim`?
    pub(crate) fn allows(&mut self, floor: u64, need: u64, victim: u64) -> bool {
        if victim <= need {
            return false;
        }
        let until = |position: u64| position.saturating_sub(floor) as f64;
        let share = until(need) / until(victim).max(1.0);
        let allowed = share <= self.share;
        self.put_off = (!allowed).then_some(share);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::access::Access;
    use crate::stats::Stats;
    use crate::units::Range;
    use crate::world::block::Extent;
    use crate::{Bytes, Config, PolicyKind, Seq, StreamId};

    const LAG: Option<u64> = Some(640);

    fn quiet(reach: &mut Reach, launches: u64) {
        for _ in 0..launches / Reach::LAUNCHES {
            reach.learn(false, true, Reach::LAUNCHES, LAG);
        }
    }

    #[test]
    fn a_wait_in_every_cycle_keeps_what_it_widened() {
        let mut reach = Reach::default();
        for _ in 0..20 {
            reach.learn(true, true, Reach::LAUNCHES, LAG);
            quiet(&mut reach, 576);
        }
        assert!(reach.share > 0.7, "{}", reach.share);
    }

    #[test]
    fn cycles_without_a_wait_halve_it_down_to_the_narrowest() {
        let mut reach = Reach::default();
        for _ in 0..4 {
            reach.learn(true, true, Reach::LAUNCHES, LAG);
        }
        assert_eq!(reach.share, Reach::WIDE);
        quiet(&mut reach, 640);
        assert!(reach.share > 0.7, "within a cycle slowly: {}", reach.share);
        quiet(&mut reach, 1280);
        assert!(reach.share < 0.25, "then fast: {}", reach.share);
        quiet(&mut reach, 1920);
        assert_eq!(reach.share, Reach::NARROWEST);
    }

    /// In each of so many cycles a launch waits where the share is below `needed`; in how many of them
    /// one did.
    fn waits(reach: &mut Reach, cycles: u64, needed: f64) -> u64 {
        let mut waits = 0;
        for _ in 0..cycles {
            let missed = reach.share < needed;
            waits += u64::from(missed);
            reach.learn(missed, true, Reach::LAUNCHES, LAG);
            quiet(reach, 576);
        }
        waits
    }

    #[test]
    fn each_wait_that_narrowing_brought_back_makes_it_half_as_fast() {
        let mut reach = Reach::default();
        waits(&mut reach, 40, 0.5);
        assert!(waits(&mut reach, 160, 0.5) <= 4);
        assert!(waits(&mut reach, 400, 0.5) >= 1, "it goes on trying");
    }

    #[test]
    fn what_needs_no_reach_any_more_narrows_all_the_way_and_is_as_quick_the_next_time() {
        let mut reach = Reach::default();
        waits(&mut reach, 200, 0.5);
        assert_eq!(reach.patience, Reach::MOST_PATIENCE);
        waits(&mut reach, 8 * Reach::MOST_PATIENCE, 0.0);
        assert_eq!(reach.share, Reach::NARROWEST);
        reach.share = Reach::WIDE;
        waits(&mut reach, 6, 0.0);
        assert_eq!(reach.share, Reach::NARROWEST);
    }

    #[test]
    fn it_goes_on_narrowing_slowly_where_a_wait_came_back_at_the_narrowest() {
        let mut reach = Reach::default();
        for _ in 0..8 {
            quiet(&mut reach, 6400);
            reach.learn(true, true, Reach::LAUNCHES, LAG);
        }
        quiet(&mut reach, 64_000);
        assert_eq!((reach.share, reach.patience), (Reach::NARROWEST, 1));
    }

    #[test]
    fn a_jump_after_it_was_narrowed_counts_as_well() {
        let mut reach = spared();
        quiet(&mut reach, 1280);
        let before = reach.patience;
        reach.waited(900_000.0, 1_000_000.0);
        assert_eq!(reach.patience, 2 * before);
        reach.waited(1.0, 1_000_000.0);
        assert_eq!(reach.patience, 2 * before, "nothing was narrowed since");
    }

    #[test]
    fn what_the_link_had_to_spare_before_a_wait_widens_though_it_is_busy_then() {
        let config = Config::new(PolicyKind::Foresight, Bytes(64 * BLOCK_BYTES));
        let mut world = World::new(&config);
        let mut reach = Reach::default();
        let before = reach.share;
        let mut look = |world: &mut World, us: u64, busy: bool| {
            for _ in 0..Reach::LAUNCHES {
                let novel = world.history.head() as u32;
                world.history.push((novel, novel), std::iter::empty());
            }
            (reach.idle, reach.missed) = (!busy, busy);
            reach.adapt(Micros(us), world);
            reach.share
        };
        // It waits while the link is busy; before that the link was idle as long.
        look(&mut world, 1_000, false);
        let after = look(&mut world, 2_000, true);
        assert!(after > before, "{after}");
        // So it does again, with nothing in between.
        assert!(look(&mut world, 3_000, true) < after);
    }

    #[test]
    fn a_twentieth_of_the_time_that_the_link_had_to_spare_is_enough_to_widen() {
        for (spare_us, widens) in [(50, true), (30, false)] {
            let config = Config::new(PolicyKind::Foresight, Bytes(64 * BLOCK_BYTES));
            let mut world = World::new(&config);
            let mut reach = Reach::default();
            let before = reach.share;
            reach.adapt(Micros(spare_us), &world);
            for novel in 0..Reach::LAUNCHES as u32 {
                world.history.push((novel, novel), std::iter::empty());
            }
            (reach.idle, reach.missed) = (false, true);
            reach.adapt(Micros(1_000), &world);
            assert_eq!(reach.share > before, widens, "{spare_us} us of 1,000");
        }
    }

    /// The link was idle for a second while exchanges were put off that half the victim's distance
    /// would have allowed, and for another that 0.9 of it would.
    fn spared() -> Reach {
        let mut reach = Reach::default();
        for (need, victim) in [(500, 1_000), (900, 1_000)] {
            assert!(!reach.allows(0, need, victim));
            let share = reach.put_off.take().unwrap();
            reach.spared.add(share, 1_000_000);
        }
        reach
    }

    #[test]
    fn a_long_wait_widens_at_once_to_what_would_have_served_it() {
        for (wait_us, least, most) in [
            (900_000.0, 0.5, 0.75),
            (1_500_000.0, 0.9, 1.0),
            (9_000_000.0, 0.9, 1.0),
        ] {
            let mut reach = spared();
            reach.waited(wait_us, 2.0 * wait_us);
            assert!((least..=most).contains(&reach.share), "{}", reach.share);
            assert!(reach.allows(0, (least * 1_000.0) as u64, 1_000));
        }
    }

    #[test]
    fn a_wait_in_parts_is_served_as_one() {
        let mut reach = spared();
        for _ in 0..3 {
            reach.waited(500_000.0, 1_000_000.0);
        }
        assert!(reach.share >= 0.9, "{}", reach.share);
    }

    #[test]
    fn what_was_not_to_spare_in_the_last_cycle_serves_no_wait() {
        let unchanged = Reach::default().share;
        let after = |part, wait_us, whole_us| {
            let mut reach = spared();
            reach.spared.fade(part);
            reach.waited(wait_us, whole_us);
            reach.share
        };
        assert!(after(0.0, 100_000.0, 1_000_000.0) > unchanged);
        let short = after(0.0, 30_000.0, 1_000_000.0);
        assert_eq!(short, unchanged, "a short wait");
        let before = after(1.0, 100_000.0, 1_000_000.0);
        assert_eq!(before, unchanged, "a cycle ago");
        let little = after(0.99, 900_000.0, 1_000_000.0);
        assert_eq!(little, unchanged, "the link had next to nothing to spare");
    }

    #[test]
    fn time_counts_as_spare_while_the_link_is_idle_and_an_exchange_is_put_off() {
        let spared_us = |idle: bool, asked: bool, on_host: u64| {
            let config = Config::new(PolicyKind::Foresight, Bytes(64 * BLOCK_BYTES));
            let mut world = World::new(&config);
            world.remote_bytes = on_host;
            let mut reach = Reach::default();
            reach.adapt(Micros(300), &world);
            if asked {
                assert!(!reach.allows(0, 500, 1_000));
            }
            reach.idle = idle;
            reach.adapt(Micros(1_000), &world);
            reach.spared.us.iter().sum::<f64>()
        };
        assert_eq!(spared_us(true, true, 0), 700.0);
        assert_eq!(spared_us(false, true, 0), 0.0, "the link is busy");
        assert_eq!(spared_us(true, false, 0), 0.0, "there is nothing to bring");
        let on_host = spared_us(true, true, BLOCK_BYTES);
        assert_eq!(on_host, 0.0, "launches use the link by themselves");
    }

    #[test]
    fn a_launch_waits_for_the_content_that_is_not_there_when_it_begins() {
        let share = |residency: Residency, content: bool| {
            let config = Config::new(PolicyKind::Foresight, Bytes(64 * BLOCK_BYTES));
            let mut world = World::new(&config);
            let range = Range {
                address: BLOCK_BYTES,
                bytes: 8 * BLOCK_BYTES,
            };
            world.alloc(range, true, residency, &mut Stats::default());
            world.begin_part(range);
            for id in range.blocks() {
                let slot = world.blocks.find(id).unwrap();
                world.blocks.set_content(slot, content);
            }
            let mut exec = (0..4).cycle();
            let mut run = |world: &mut World| {
                let exec = exec.next().unwrap();
                (exec, world.history.push((exec, 0), std::iter::empty()))
            };
            for _ in 0..Reach::LAUNCHES {
                run(&mut world);
            }
            assert!(world.history.lag().is_some());
            let (exec, position) = run(&mut world);
            let access = Access {
                set: Arc::from([Extent { first: 1, count: 8 }]),
                loose: Arc::from([]),
                sweep: None,
            };
            let call = (Seq(1), StreamId(0));
            let arguments = Arc::from([]);
            world.window.push((position, exec), call, access, arguments);
            let mut reach = spared();
            reach.started(&world);
            reach.idle = false;
            reach.adapt(Micros(2_000), &world);
            reach.share
        };
        assert!(share(Residency::Host, true) >= 0.5);
        assert!(share(Residency::Device, true) < 0.5, "it is there");
        assert!(share(Residency::Unpopulated, false) < 0.5, "it is born");
    }

    #[test]
    fn what_comes_while_launches_wait_for_it_counts_like_what_they_lack() {
        let share = |awaited: u64, before: u64| {
            let config = Config::new(PolicyKind::Foresight, Bytes(64 * BLOCK_BYTES));
            let mut world = World::new(&config);
            for novel in 0..Reach::LAUNCHES as u32 {
                world.history.push((novel, novel), std::iter::empty());
            }
            let mut reach = spared();
            world.awaited = awaited;
            (reach.idle, reach.missed, reach.awaited) = (false, true, before);
            reach.adapt(Micros(2_000), &world);
            reach.share
        };
        assert!(share(8, 0) >= 0.5);
        assert!(share(8, 8) < 0.5, "it was looked at before");
        assert!(share(0, 0) < 0.5);
    }

    #[test]
    fn a_jump_is_wide_enough_for_the_next_cycle() {
        let mut reach = spared();
        reach.waited(900_000.0, 1_000_000.0);
        quiet(&mut reach, 576);
        assert!(reach.allows(0, 500, 1_000), "{}", reach.share);
    }

    #[test]
    fn a_wait_while_the_link_is_busy_narrows_and_never_widens() {
        let mut reach = Reach::default();
        let mut before = reach.share;
        for _ in 0..20 {
            reach.learn(true, false, Reach::LAUNCHES, LAG);
            assert!(reach.share <= before);
            before = reach.share;
        }
        assert_eq!(reach.share, Reach::NARROW);
        quiet(&mut reach, 6400);
        reach.learn(true, false, Reach::LAUNCHES, LAG);
        assert_eq!(reach.share, Reach::NARROWEST);
    }
}
