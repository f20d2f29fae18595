//! What a planner reckons with: how full the device is during each launch, and how much of
//! each launch's time a link direction still has free.

use crate::units::Nanos;

/// A sum that changes over ranges of launches, with its largest and smallest value asked for.
///
/// Both trees answer in time logarithmic in the number of launches.
pub(in crate::policy) struct Levels {
    size: usize,
    count: usize,
    max: Vec<i64>,
    min: Vec<i64>,
    add: Vec<i64>,
}

impl Levels {
    /// One level for each launch.
    pub fn new(values: impl ExactSizeIterator<Item = i64>) -> Self {
        let count = values.len();
        let size = count.next_power_of_two().max(1);
        let mut max = vec![i64::MIN / 4; 2 * size];
        let mut min = vec![i64::MAX / 4; 2 * size];
        for (at, value) in values.enumerate() {
            max[size + at] = value;
            min[size + at] = value;
        }
        for node in (1..size).rev() {
            max[node] = max[2 * node].max(max[2 * node + 1]);
            min[node] = min[2 * node].min(min[2 * node + 1]);
        }
        Self {
            size,
            count,
            max,
            min,
            add: vec![0; 2 * size],
        }
    }

    /// Adds to the launches `from .. to`.
    pub fn add(&mut self, from: u32, to: u32, value: i64) {
        let to = (to as usize).min(self.count);
        if (from as usize) < to {
            self.change(1, 0, self.size, from as usize, to, value);
        }
    }

    fn change(&mut self, node: usize, low: usize, high: usize, from: usize, to: usize, value: i64) {
        if from <= low && high <= to {
            self.max[node] += value;
            self.min[node] += value;
            self.add[node] += value;
            return;
        }
        let middle = (low + high) / 2;
        if from < middle {
            self.change(2 * node, low, middle, from, to, value);
        }
        if to > middle {
            self.change(2 * node + 1, middle, high, from, to, value);
        }
        self.max[node] = self.max[2 * node].max(self.max[2 * node + 1]) + self.add[node];
        self.min[node] = self.min[2 * node].min(self.min[2 * node + 1]) + self.add[node];
    }

    /// The highest level of all.
    pub fn highest(&self) -> i64 {
        self.max[1]
    }

    /// The last launch before `end` whose level is above `limit`.
    pub fn last_above(&self, end: u32, limit: i64) -> Option<u32> {
        self.search(1, 0, self.size, (end as usize).min(self.count), limit)
            .map(|at| at as u32)
    }

    fn search(
        &self,
        node: usize,
        low: usize,
        high: usize,
        end: usize,
        limit: i64,
    ) -> Option<usize> {
        if low >= end || self.max[node] <= limit {
            return None;
        }
        if high - low == 1 {
            return Some(low);
        }
        let middle = (low + high) / 2;
        let limit = limit - self.add[node];
        self.search(2 * node + 1, middle, high, end, limit)
            .or_else(|| self.search(2 * node, low, middle, end, limit))
    }

    /// Some launch whose level is not above `limit`.
    fn any_within(&self, limit: i64) -> Option<u32> {
        let (mut node, mut limit) = (1, limit);
        if self.min[1] > limit {
            return None;
        }
        while node < self.size {
            limit -= self.add[node];
            node = if self.min[2 * node] <= limit {
                2 * node
            } else {
                2 * node + 1
            };
        }
        Some((node - self.size) as u32)
    }
}

/// The time during which the device is too full, over ranges of launches, while a planner
/// takes memory away.
pub(in crate::policy) struct Excess {
    levels: Levels,
    /// Fenwick tree over the launches' times; only of those that are too full.
    times: Vec<u64>,
    of: Vec<u64>,
    limit: i64,
}

impl Excess {
    /// From the occupied frames and duration of every launch, and the frames that there are.
    pub fn new(occupied: &[u32], times: &[Nanos], limit: u32) -> Self {
        let mut this = Self {
            levels: Levels::new(occupied.iter().map(|&frames| i64::from(frames))),
            times: vec![0; occupied.len() + 1],
            of: times.iter().map(|time| time.0).collect(),
            limit: i64::from(limit),
        };
        for at in 0..occupied.len() {
            this.count(at, this.of[at] as i64);
        }
        this.settle();
        this
    }

    fn count(&mut self, launch: usize, time: i64) {
        let mut at = launch + 1;
        while at < self.times.len() {
            self.times[at] = self.times[at].wrapping_add_signed(time);
            at += at & at.wrapping_neg();
        }
    }

    /// Launches that are no longer too full stop counting for good.
    fn settle(&mut self) {
        while let Some(launch) = self.levels.any_within(self.limit) {
            self.count(launch as usize, -(self.of[launch as usize] as i64));
            // Out of the way of the next question.
            self.levels.add(launch, launch + 1, i64::MAX / 8);
        }
    }

    fn until(&self, launch: u32) -> u64 {
        let mut at = (launch as usize).min(self.of.len());
        let mut sum = 0;
        while at > 0 {
            sum += self.times[at];
            at &= at - 1;
        }
        sum
    }

    /// Time of the launches `from .. to` that are too full.
    pub fn time(&self, from: u32, to: u32) -> Nanos {
        if from >= to {
            return Nanos(0);
        }
        Nanos(self.until(to) - self.until(from))
    }

    /// Some launch is too full.
    pub fn any(&self) -> bool {
        self.until(self.of.len() as u32) > 0
    }

    /// Takes frames away over `from .. to`.
    pub fn relieve(&mut self, from: u32, to: u32, frames: u32) {
        self.levels.add(from, to, -i64::from(frames));
        self.settle();
    }
}

/// How much of every launch's time one direction of a link is not yet promised.
pub(in crate::policy) struct Track {
    left: Vec<u64>,
    /// Next launch at or after this one with time left, by path halving.
    after: Vec<u32>,
    /// Number, plus one, of the last launch at or before this one with time left.
    before: Vec<u32>,
}

impl Track {
    /// All of it free.
    pub fn new(times: &[Nanos]) -> Self {
        let count = times.len() as u32;
        Self {
            left: times.iter().map(|time| time.0).collect(),
            after: (0..=count).collect(),
            before: (0..=count).collect(),
        }
    }

    fn next(&mut self, mut launch: u32) -> u32 {
        while self.after[launch as usize] != launch {
            let further = self.after[self.after[launch as usize] as usize];
            self.after[launch as usize] = further;
            launch = further;
        }
        launch
    }

    /// `end` counts from one: launches before `end`.
    fn previous(&mut self, mut end: u32) -> u32 {
        while self.before[end as usize] != end {
            let further = self.before[self.before[end as usize] as usize];
            self.before[end as usize] = further;
            end = further;
        }
        end
    }

    /// The launch during which `time` of free link time from `from` on is used up; none
    /// where that is not before `end`. Takes it where `take`.
    pub fn forward(&mut self, from: u32, end: u32, time: Nanos, take: bool) -> Option<u32> {
        let mut need = time.0;
        let mut at = self.next(from);
        while at < end {
            let part = need.min(self.left[at as usize]);
            need -= part;
            if take {
                self.take(at, part);
            }
            if need == 0 {
                return Some(at);
            }
            at = self.next(at + 1);
        }
        None
    }

    /// The launch at whose start a transfer must begin at the latest to be over by the
    /// start of `to`; none where that is not at or after `from`. Takes it where `take`.
    pub fn backward(&mut self, from: u32, to: u32, time: Nanos, take: bool) -> Option<u32> {
        let mut need = time.0;
        let mut end = self.previous(to);
        while end > from {
            let at = end - 1;
            let part = need.min(self.left[at as usize]);
            need -= part;
            if take {
                self.take(at, part);
            }
            if need == 0 {
                return Some(at);
            }
            end = self.previous(at);
        }
        None
    }

    fn take(&mut self, launch: u32, part: u64) {
        let left = &mut self.left[launch as usize];
        *left -= part;
        if *left == 0 {
            self.after[launch as usize] = launch + 1;
            self.before[launch as usize + 1] = launch;
        }
    }
}
