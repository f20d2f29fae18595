//! Where each iteration turns from forward to backward, and which iterations are alike.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use super::{TensorId, Tensors};
use crate::trace::{Launch, Program};

/// One iteration of the program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::policy) struct Iteration {
    /// Its launches.
    pub launches: Range<u32>,
    /// The launch at which most bytes are alive: forward before, backward from here on. The
    /// first launch where nothing is born in the iteration that lasts.
    pub turn: Launch,
    /// Every turning point: more than one where an iteration is several forward and backward
    /// passes (gradient accumulation). Ascending; never empty unless the iteration is.
    pub turns: Vec<Launch>,
    /// Equal for iterations that launch the same work in the same order.
    pub shape: u64,
}

impl Iteration {
    /// Whether some turning point lies after `from` and no later than `to`: of a gap between
    /// two uses, that it leads from a forward pass into its backward pass.
    pub fn turns_between(&self, from: Launch, to: Launch) -> bool {
        let first = self.turns.partition_point(|&turn| turn <= from);
        self.turns.get(first).is_some_and(|&turn| turn <= to)
    }

    /// How many launches.
    pub fn len(&self) -> usize {
        self.launches.len()
    }

    /// Holds this launch.
    pub fn contains(&self, launch: Launch) -> bool {
        self.launches.contains(&launch.0)
    }
}

/// The place of a tensor in its iteration, the same in all iterations of one shape: which
/// launch uses it first, and as which of its tensors.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(in crate::policy) struct Role {
    offset: u32,
    ordinal: u32,
}

impl Tensors<'_> {
    /// The iteration that a launch belongs to; none for set-up.
    pub fn iteration_of(&self, launch: Launch) -> Option<usize> {
        let iteration = self.program().launches().get(launch.index())?.iteration?;
        Some(iteration as usize)
    }

    /// Which tensor of an iteration this is: none where the iteration does not use it.
    pub fn role(&self, iteration: usize, tensor: TensorId) -> Option<Role> {
        let launches = &self.iterations()[iteration].launches;
        let uses = self.uses(tensor);
        let first = uses.partition_point(|u| u.launch.0 < launches.start);
        let launch = uses.get(first)?.launch;
        if !launches.contains(&launch.0) {
            return None;
        }
        let ordinal = self
            .of_launch(launch)
            .iter()
            .position(|u| u.tensor == tensor)?;
        Some(Role {
            offset: launch.0 - launches.start,
            ordinal: ordinal as u32,
        })
    }

    /// The tensor that has this role in an iteration.
    pub fn with_role(&self, iteration: usize, role: Role) -> Option<TensorId> {
        let launches = &self.iterations()[iteration].launches;
        let launch = launches.start + role.offset;
        if launch >= launches.end {
            return None;
        }
        let uses = self.of_launch(Launch(launch));
        uses.get(role.ordinal as usize).map(|u| u.tensor)
    }
}

/// The iterations of a program, where `live` bytes of tensors are alive at each launch.
pub(super) fn iterations(program: &Program, live: &[u64]) -> Vec<Iteration> {
    program
        .iterations()
        .iter()
        .map(|launches| {
            let turns = turns(launches.clone(), live);
            let turn = turns
                .iter()
                .copied()
                .max_by_key(|turn| (live[turn.index()], std::cmp::Reverse(*turn)))
                .unwrap_or(Launch(launches.start));
            let mut hasher = DefaultHasher::new();
            for launch in launches.clone() {
                program.launch(Launch(launch)).signature.hash(&mut hasher);
            }
            Iteration {
                launches: launches.clone(),
                turn,
                turns,
                shape: hasher.finish(),
            }
        })
        .collect()
}

/// The tops of the curve of live bytes: each rises from, and falls below, half of the way
/// from the lowest to the highest point of the iteration.
fn turns(launches: Range<u32>, live: &[u64]) -> Vec<Launch> {
    let of = |launch: u32| live[launch as usize];
    let Some(lowest) = launches.clone().map(of).min() else {
        return Vec::new();
    };
    let highest = launches.clone().map(of).max().unwrap_or(lowest);
    let half = lowest + (highest - lowest) / 2;
    let mut turns = Vec::new();
    let mut top: Option<u32> = None;
    for launch in launches.clone() {
        if of(launch) > half {
            top = match top {
                Some(best) if of(best) >= of(launch) => Some(best),
                _ => Some(launch),
            };
        } else if let Some(best) = top.take() {
            turns.push(Launch(best));
        }
    }
    turns.extend(top.map(Launch));
    if turns.is_empty() {
        turns.push(Launch(launches.start));
    }
    turns
}
