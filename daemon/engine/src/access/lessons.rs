//! What is learned of accesses from faults and from their absence, and how it is kept from one
//! run to the next.

use super::correction::{CORRECTIONS, STRIKES};
use super::ends::NOWHERE;
use super::parts::Learned;
use std::sync::Arc;

use super::{
    Access, Accesses, Argument, BYTES_PER_THREAD, MOST_BYTES_PER_THREAD, Regular, extent_of,
};
use crate::hash::Map;
use crate::identity::UNKNOWN;
use crate::profile::{Corrected, Profile};
use crate::scatter::{Seen, seen};
use crate::units::{BLOCK_BYTES, BlockId, Range};
use crate::world::block::{Extent, Set, normalize};
use crate::world::memory::Memory;
use crate::world::visits::Visits;
use crate::world::window::Pending;

/// Blocks of a pool's part that a launch uses beyond the next pointer before they tell how far its
/// argument goes.
const STRAYS: u32 = 4;
/// Launches in a row that must use all of their arguments where one did not.
pub(super) const IN_A_ROW: u8 = 8;
/// Absent blocks from which it can be told whether a launch uses all of its arguments.
const OBSERVED_BLOCKS: u64 = 16;

/// What is known next of how much is used, where that tells: of `absent` blocks `touched` were.
fn known_next(known: Option<Regular>, absent: u64, touched: u64) -> Option<Regular> {
    if absent < OBSERVED_BLOCKS {
        return None;
    }
    let most = touched * 8 >= absent * 7;
    let next = match known {
        None if most => Regular::All,
        None if touched * 2 >= absent => return None,
        None => Regular::Parts(0),
        Some(Regular::All) if touched * 2 < absent => Regular::Parts(0),
        Some(Regular::All) => return None,
        Some(Regular::Parts(row)) if most && row + 1 >= IN_A_ROW => Regular::All,
        Some(Regular::Parts(row)) if most => Regular::Parts(row + 1),
        Some(Regular::Parts(_)) => Regular::Parts(0),
    };
    Some(next)
}

impl Accesses {
    /// Of `absent` blocks in the loose memory of a launch of `function`, it touched so many.
    /// Whether it is learned from that that its launches use all of it: the first one that is
    /// seen tells, or many in a row after one that left much alone. What that one was given may
    /// have been taken for more than it was.
    pub(crate) fn observe(&mut self, function: u32, absent: u64, touched: u64) -> bool {
        let known = self.regular.get(&function).copied();
        if self.regular.len() >= self.limit && known.is_none() {
            return false;
        }
        let Some(next) = known_next(known, absent, touched) else {
            return false;
        };
        self.regular.insert(function, next);
        next == Regular::All
    }

    /// The same of each argument by itself, of a launch with these pointers that touched some of
    /// its absent loose blocks and left others alone: whether it is learned of one that launches use
    /// all of it.
    pub(crate) fn observe_arguments(
        &mut self,
        arguments: &[Argument],
        touched: &[BlockId],
        left: &[BlockId],
    ) -> bool {
        let mut seen_of: Map<(u32, u32), [u64; 2]> = Map::default();
        for (_, word, seen) in seen(arguments, touched, left) {
            let moves = || self.habits.get(&word).is_some_and(|habit| habit.moves);
            let counts = seen_of.entry(word).or_default();
            match seen {
                Seen::Touched => counts[0] += 1,
                Seen::Beyond if moves() => {}
                Seen::Left | Seen::Beyond => counts[1] += 1,
            }
        }
        let mut learned = false;
        for (word, [touched, left]) in seen_of {
            let known = self.regular_words.get(&word).copied();
            if self.regular_words.len() >= self.limit * 4 && known.is_none() {
                continue;
            }
            if let Some(next) = known_next(known, touched + left, touched) {
                self.regular_words.insert(word, next);
                learned |= next == Regular::All;
            }
        }
        learned
    }

    /// How many of the blocks that a launch with these pointers left alone lie behind all that it
    /// used of an argument that means another part each time: it was taken for too large.
    pub(crate) fn beyond(
        &self,
        arguments: &[Argument],
        touched: &[BlockId],
        left: &[BlockId],
        memory: &Memory,
    ) -> u64 {
        if left.is_empty() {
            return 0;
        }
        let moves = |word: &(u32, u32)| self.habits.get(word).is_some_and(|habit| habit.moves);
        let seen = seen(arguments, touched, left).into_iter();
        let beyond = seen.filter(|(_, word, seen)| *seen == Seen::Beyond && moves(word));
        let beyond = beyond.count() as u64;
        beyond.max(self.ends.count_behind(arguments, left, memory))
    }

    /// A launch with these pointers is over: of what was away it touched some blocks and left
    /// others alone. Whether it is learned from that where an argument ends.
    pub(crate) fn see_ends(
        &mut self,
        arguments: &[Argument],
        seen: (&[BlockId], &[BlockId]),
        memory: &Memory,
    ) -> bool {
        self.ends.learn(arguments, seen, (memory, self.limit * 4))
    }

    /// The same of one that was taken to use some of these blocks, and of whom it is learned which
    /// part they use.
    pub(crate) fn see_parts(
        &mut self,
        launch: (u32, &[Argument]),
        seen: (&[BlockId], &[BlockId]),
        memory: &Memory,
        visits: &mut Visits,
    ) -> Learned {
        (self.parts).learn(launch, seen, (memory, visits, self.limit))
    }

    /// What a launch uses that was taken to use `access` before it was known where its arguments
    /// end; none if it is the same.
    pub(crate) fn cut(
        &self,
        access: &Access,
        arguments: &[Argument],
        memory: &Memory,
    ) -> Option<Access> {
        self.ends.cut(access, arguments, memory)
    }

    /// What a launch with these pointers uses once its function is known to use all of its
    /// arguments, though `access` was told of it before that; none where that changes nothing.
    pub(crate) fn whole(&self, access: &Access, arguments: &[Argument]) -> Option<Access> {
        if access.loose.is_empty() {
            return None;
        }
        let whole = |argument: &Argument| {
            let word = (argument.function, argument.word);
            self.is_regular(word) && !self.scatter.is_scattered(word, false, false)
        };
        // Where two arguments begin in one block both must be.
        let begin = Argument::block;
        let is_whole = |part: &Extent| {
            let mut all = arguments
                .iter()
                .filter(|a| begin(a) == part.first)
                .peekable();
            all.peek().is_some() && all.all(whole)
        };
        let parted = by_argument(&access.loose, arguments);
        let (taken, mut loose): (Vec<_>, Vec<_>) = parted.into_iter().partition(is_whole);
        if taken.is_empty() {
            return None;
        }
        normalize(&mut loose);
        let mut parts = access.sweep.as_ref().unwrap_or(&access.set).to_vec();
        parts.extend_from_slice(&taken);
        let mut set = [&access.set[..], &taken[..]].concat();
        normalize(&mut set);
        let blocks: u64 = parts.iter().map(|extent| extent.count).sum();
        let sweep = self.is_followed(blocks, false);
        Some(Access {
            set: Arc::from(set),
            loose: Arc::from(loose),
            sweep: sweep.then(|| Arc::from(by_argument(&parts, arguments))),
        })
    }

    /// A block faulted while `launch` ran, though it was not expected. `arguments` are those of
    /// the launch that point into the same object, and `certain` if no other running launch has
    /// any. Gives the [`super::shape`] of the one that goes further than any of its shape was seen
    /// to.
    pub(crate) fn missed(
        &mut self,
        launch: &Pending,
        block: BlockId,
        (arguments, certain): (&[Argument], bool),
        memory: &Memory,
    ) -> Option<u64> {
        self.ends.went_on(arguments, block);
        let place = memory
            .name_at(block.address())
            .map(|(name, offset)| (name, offset / BLOCK_BYTES));
        // One that was declared and then taken out says nothing of extents.
        let taken_out = place
            .and_then(|place| self.corrections.get(&launch.exec)?.absent.get(&place))
            .is_some_and(|&strikes| strikes >= STRIKES);
        let before = arguments
            .iter()
            .filter(|argument| argument.address / BLOCK_BYTES <= block.0)
            .max_by_key(|argument| argument.address);
        if let Some(argument) = before
            && taken_out
        {
            self.scatter.came_back(argument.function, argument.word);
        }
        if let Some(argument) = before
            && !taken_out
            && self.wide.len() < self.limit * 4
        {
            let key = (argument.function, argument.word);
            let each = self.wide.entry(key).or_insert(BYTES_PER_THREAD);
            *each = (*each * 2).min(MOST_BYTES_PER_THREAD * 2);
        }
        if let Some(argument) = before
            && let Some(rest) = self.rests.get_mut(&argument.shape)
            && block.address() >= argument.address.saturating_add(*rest)
        {
            // Launches of this shape are not given tensors of one size.
            *rest = NOWHERE;
        }
        let mut further = None;
        if let Some(argument) = before
            && !taken_out
            && certain
            && self.goes_on(launch.position, argument, memory)
            && (self.reaches.len() < self.limit * 4 || self.reaches.contains_key(&argument.shape))
        {
            let needed = block.address() + BLOCK_BYTES - argument.address;
            let reach = self.reaches.entry(argument.shape).or_default();
            if *reach < needed {
                *reach = needed;
                further = Some(argument.shape);
            }
        }
        if let Some(argument) = before
            && !taken_out
            && memory.is_cut(argument.address)
            && let Some(habit) = self.habits.get_mut(&(argument.function, argument.word))
        {
            let needed = block.address() + BLOCK_BYTES - argument.address;
            if habit.reach < needed {
                // What goes on this far goes on: twice as much the next time.
                habit.reach = needed.max(habit.reach.saturating_mul(2));
            }
        }
        if let Some(argument) = before
            && memory.has_landmarks(argument.address)
            && !taken_out
            && launch.exec != UNKNOWN
            && self.beyond.len() < self.limit * 4
        {
            self.beyond.insert((launch.exec, argument.word), ());
        }
        let full =
            self.corrections.len() >= self.limit && !self.corrections.contains_key(&launch.exec);
        if let Some(place) = place
            && launch.exec != UNKNOWN
            && !full
        {
            let correction = self.corrections.entry(launch.exec).or_default();
            let before = correction.places();
            correction.absent.remove(&place);
            correction.add(place);
            self.places = self.places + correction.places() - before;
        }
        further
    }

    /// Whether what an argument used beyond what was known says how far it goes. A pool's parts
    /// are cut by the pointers of all launches: a block that one of them uses may be another's.
    fn goes_on(&mut self, position: u64, argument: &Argument, memory: &Memory) -> bool {
        if !memory.has_landmarks(argument.address) {
            return true;
        }
        let room = self.strays.len() < self.limit || self.strays.contains_key(&argument.shape);
        room && {
            let (last, strays) = self.strays.entry(argument.shape).or_default();
            if *last != position {
                (*last, *strays) = (position, 0);
            }
            *strays = strays.saturating_add(1);
            *strays >= STRAYS
        }
    }

    /// What a launch uses that was taken to use `access` before faults told more; none where they
    /// told no more.
    pub(crate) fn with_missed(
        &self,
        exec: u32,
        access: &Access,
        arguments: &[Argument],
        memory: &Memory,
    ) -> Option<Access> {
        let mut set = access.set.to_vec();
        // Of one that is followed, argument by argument.
        let mut parts = access.sweep.as_ref().map(|sweep| sweep.to_vec());
        for argument in arguments {
            let (address, shape) = (argument.address, argument.shape);
            let id = BlockId::containing(address);
            // Not where it uses some of it here and there.
            if let Some(&bytes) = self.reaches.get(&shape)
                && access.set.iter().any(|extent| extent.contains(id))
            {
                let extent = extent_of(memory.within(Range { address, bytes }), memory);
                set.push(extent);
                let parts = parts.iter_mut().flatten();
                for part in parts.filter(|part| part.first == extent.first) {
                    part.count = part.count.max(extent.count);
                }
            }
        }
        let known = self.parts.of(exec, &access.loose, memory);
        set.extend_from_slice(&known);
        for &extent in &known {
            let parts = parts.iter_mut().filter(|parts| !parts.contains(&extent));
            parts.for_each(|parts| parts.push(extent));
        }
        normalize(&mut set);
        if let Some(correction) = self.corrections.get(&exec) {
            correction.extend(&mut set, memory);
        }
        (*set != *access.set).then(|| {
            // It may have been taken for small.
            let blocks: u64 = set.iter().map(|extent| extent.count).sum();
            if parts.is_none() && self.is_followed(blocks, false) {
                parts = Some(by_argument(&set, arguments));
            }
            Access {
                set: Arc::from(set),
                loose: access.loose.clone(),
                sweep: parts.map(Set::from),
            }
        })
    }

    /// A block was expected by a launch that is over, was not on the device and did not
    /// fault: the launch left it alone.
    pub(crate) fn left_alone(&mut self, exec: u32, block: BlockId, memory: &Memory) {
        let Some((name, offset)) = memory.name_at(block.address()) else {
            return;
        };
        if exec == UNKNOWN
            || (self.corrections.len() >= self.limit && !self.corrections.contains_key(&exec))
        {
            return;
        }
        let place = (name, offset / BLOCK_BYTES);
        let correction = self.corrections.entry(exec).or_default();
        let before = correction.places();
        correction.take_out(place);
        if correction.absent.len() < CORRECTIONS * 16 || correction.absent.contains_key(&place) {
            let strikes = correction.absent.entry(place).or_default();
            *strikes = strikes.saturating_add(1);
        }
        self.places = self.places + correction.places() - before;
    }

    /// The last access of each execution ID.
    pub(crate) fn sets(&self) -> impl Iterator<Item = (u32, &Access)> {
        self.shared.iter().map(|(&exec, access)| (exec, access))
    }

    /// Puts what was learned of accesses into a profile.
    pub(crate) fn learned(&self, profile: &mut Profile) {
        profile.wide = self.wide.iter().map(|(&key, &each)| (key, each)).collect();
        profile.wide.sort_unstable();
        profile.tiled = self.tiled.keys().copied().collect();
        profile.tiled.sort_unstable();
        profile.beyond = self.beyond.keys().copied().collect();
        profile.beyond.sort_unstable();
        let regular = self.regular.iter();
        profile.regular = regular.map(|(&f, &of)| (f, of == Regular::All)).collect();
        profile.regular.sort_unstable();
        let words = self.regular_words.iter();
        profile.regular_words = words.map(|(&w, &of)| (w, of == Regular::All)).collect();
        profile.regular_words.sort_unstable();
        profile.reaches = self.reaches.iter().map(|(&s, &bytes)| (s, bytes)).collect();
        profile.reaches.sort_unstable();
        profile.scattered = self.scatter.learned();
        for (&exec, correction) in &self.corrections {
            let extra = correction.extra.iter();
            let extra = extra.map(|&(name, extent)| (name, extent.first, extent.count, 0));
            let absent = correction.absent.iter();
            let absent = absent.map(|(&(name, block), &strikes)| (name, block, 1, strikes));
            let mut places: Vec<_> = extra.chain(absent).collect();
            places.sort_unstable();
            profile.corrected.push(Corrected { exec, places });
        }
        profile.corrected.sort_unstable_by_key(|c| c.exec);
    }

    /// Begins with what a profile tells.
    pub(crate) fn restore(&mut self, profile: &Profile) {
        self.wide.extend(profile.wide.iter().copied());
        self.tiled.extend(profile.tiled.iter().map(|&f| (f, ())));
        self.beyond.extend(profile.beyond.iter().map(|&a| (a, ())));
        let regular = |all| {
            if all { Regular::All } else { Regular::Parts(0) }
        };
        let functions = profile.regular.iter();
        self.regular
            .extend(functions.map(|&(f, all)| (f, regular(all))));
        let words = profile.regular_words.iter();
        (self.regular_words).extend(words.map(|&(word, all)| (word, regular(all))));
        self.reaches.extend(profile.reaches.iter().copied());
        self.scatter.restore(&profile.scattered);
        for corrected in profile.corrected.iter().take(self.limit) {
            let correction = self.corrections.entry(corrected.exec).or_default();
            let before = correction.places();
            for &(name, first, count, strikes) in corrected.places.iter().take(CORRECTIONS * 16) {
                if strikes > 0 {
                    correction.absent.insert((name, first), strikes);
                } else if correction.extra.len() < CORRECTIONS {
                    correction.extra.push((name, Extent { first, count }));
                }
            }
            self.places = self.places + correction.places() - before;
        }
    }
}

/// Extents in which those of several arguments that lie side by side may be one, cut where
/// arguments begin.
fn by_argument(extents: &[Extent], arguments: &[Argument]) -> Vec<Extent> {
    let begin = Argument::block;
    let mut begins: Vec<u64> = arguments.iter().map(begin).collect();
    begins.sort_unstable();
    let mut parts = Vec::with_capacity(extents.len() + begins.len());
    for extent in extents {
        let within = |&first: &u64| extent.first < first && first < extent.end();
        let mut first = extent.first;
        for next in begins.iter().copied().filter(within).chain([extent.end()]) {
            if next > first {
                let count = next - first;
                parts.push(Extent { first, count });
                first = next;
            }
        }
    }
    parts
}
