//! Where each iteration turns from forward to backward, and which iterations are alike.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use super::{Gap, TensorId, Tensors};
use crate::trace::{Launch, Program};

/// One iteration of the program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::policy) struct Iteration {
    /// Its launches.
    pub launches: Range<u32>,
    /// The launch at which most bytes are alive: forward before, backward from here on. Its
    /// first launch where nothing is born in it.
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

impl Tensors<'_> {
    /// The feature maps: gaps that lead from a forward pass into its backward pass, of
    /// tensors that the iteration itself produced. By tensor.
    pub fn feature_maps(&self) -> Vec<Gap> {
        let mut maps = Vec::new();
        for id in self.ids() {
            // Weights and state are no feature maps; without lifetimes nothing tells them
            // apart but that a map is written anew before it is read.
            if self.knows_lives() && self.get(id).persistent {
                continue;
            }
            let mut produced = None;
            for pair in self.uses(id).windows(2) {
                let (from, to) = (pair[0].launch, pair[1].launch);
                if !pair[0].reads {
                    produced = self.iteration_of(from);
                }
                let Some(iteration) = self.iteration_of(to) else {
                    continue;
                };
                if produced == Some(iteration)
                    && self.iteration_of(from) == produced
                    && pair[1].reads
                    && to.0 > from.0 + 1
                    && self.iterations()[iteration].turns_between(from, to)
                {
                    maps.push(Gap {
                        tensor: id,
                        from,
                        to,
                    });
                }
            }
        }
        maps
    }

    /// The first launch of every layer of an iteration: a layer begins where a launch uses a
    /// weight, or other lasting tensor, that the launch before it did not use, and goes on
    /// through the launches without any. Where nothing lasts, every launch is a layer.
    pub fn layers(&self, iteration: usize) -> Vec<Launch> {
        let launches = self.iterations()[iteration].launches.clone();
        let lasting = |launch: u32| {
            let uses = self.of_launch(Launch(launch)).iter();
            uses.map(|u| u.tensor).filter(|&id| self.get(id).persistent)
        };
        let begins = |launch: u32| {
            launch == launches.start
                || lasting(launch).any(|id| lasting(launch - 1).all(|before| before != id))
        };
        let layers: Vec<Launch> = launches
            .clone()
            .filter(|&l| begins(l))
            .map(Launch)
            .collect();
        if layers.len() > 1 {
            return layers;
        }
        launches.map(Launch).collect()
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
