//! OC-DNN: unified memory with a prefetch before and an advice after every layer.
//!
//! Awan et al., HiPC'18, algorithm 1: in the forward pass the outputs of a layer are
//! prefetched before it and its inputs advised to the host after it; in the backward pass
//! the saved inputs are prefetched before, and outputs and their gradients advised to the
//! host after. The hints reach one layer ahead. An advice copies nothing: it only makes the
//! data the first to leave when the driver needs room.
//!
//! What it knows: which tensors a layer reads and writes, from the framework; no sizes that
//! the driver does not know, and no times.
//!
//! Choices: a layer is a launch that uses a weight and those after it that do not; an
//! advice moves the tensor's blocks to the head of the driver's victims, in the order of
//! advice, until they are used or prefetched again; weights get neither hint. There was no
//! discard when the paper was written: dead content is copied out like any other. Faults
//! and the density prefetcher serve what the hints miss.

use std::collections::VecDeque;

use super::swap::fits;
use super::tensors::{TensorId, Tensors};
use super::{Entry, Make};
use crate::class::{Desk, DriverNotice, Future, FutureNotice, FuturePolicy};
use crate::machine::Machine;
use crate::model::{Place, Room};
use crate::trace::{Block, Launch};

pub(super) const ENTRY: Entry = Entry {
    name: "ocdnn",
    about: "OC-DNN (HiPC'18): prefetch destinations, advise sources out, layer by layer",
    make: Make::Future(make),
};

fn make<'p>(machine: &Machine, future: Future<'p>) -> Box<dyn FuturePolicy + 'p> {
    let tensors = Tensors::of(future);
    let hints = if fits(machine, &tensors) {
        Vec::new()
    } else {
        hints(&tensors)
    };
    let blocks = tensors.program().blocks();
    Box::new(OcDnn {
        tensors,
        hints,
        next: 0,
        last: 0,
        advised: vec![false; blocks],
        victims: VecDeque::new(),
    })
}

/// One layer: what is prefetched before it and advised to the host after it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Layer {
    first: Launch,
    last: Launch,
    prefetch: Vec<TensorId>,
    advise: Vec<TensorId>,
}

/// The layers of all iterations, in order.
fn hints(tensors: &Tensors<'_>) -> Vec<Layer> {
    let mut maps = vec![None; tensors.len()];
    let mut layers = Vec::new();
    for gap in tensors.feature_maps() {
        maps[gap.tensor.index()] = Some(gap.to);
    }
    for (number, iteration) in tensors.iterations().iter().enumerate() {
        let starts = tensors.layers(number);
        let ends = starts
            .iter()
            .skip(1)
            .map(|start| start.0)
            .chain([iteration.launches.end]);
        for (&first, end) in starts.iter().zip(ends) {
            let mut layer = Layer {
                first,
                last: Launch(end - 1),
                prefetch: Vec::new(),
                advise: Vec::new(),
            };
            let backward = first >= iteration.turn;
            for launch in (first.0..end).map(Launch) {
                for u in tensors.of_launch(launch) {
                    if tensors.knows_lives() && tensors.get(u.tensor).persistent {
                        continue;
                    }
                    // Its first use since the forward pass: a saved input.
                    let saved = maps[u.tensor.index()] == Some(launch);
                    let prefetch = if backward { saved } else { !u.reads };
                    if prefetch && !layer.prefetch.contains(&u.tensor) {
                        layer.prefetch.push(u.tensor);
                    }
                    let done = u.reads && !(backward && saved);
                    if done && !layer.advise.contains(&u.tensor) {
                        layer.advise.push(u.tensor);
                    }
                }
            }
            layers.push(layer);
        }
    }
    layers
}

struct OcDnn<'p> {
    tensors: Tensors<'p>,
    hints: Vec<Layer>,
    /// Layers whose prefetch was ordered.
    next: usize,
    /// Layers that are over.
    last: usize,
    /// By block.
    advised: Vec<bool>,
    /// In the order of advice; some are no longer advised.
    victims: VecDeque<Block>,
}

impl OcDnn<'_> {
    fn starting(&mut self, launch: Launch, desk: &mut Desk<'_>) {
        for access in self.tensors.program().accesses(launch) {
            self.advised[access.block.index()] = false;
        }
        // The layer that begins now, where nothing came before it, and the one after it.
        while self.next < self.hints.len()
            && (self.next == 0 || self.hints[self.next - 1].first <= launch)
        {
            let mut wanted: Vec<Block> = Vec::new();
            for &id in &self.hints[self.next].prefetch {
                for block in self.tensors.blocks(id) {
                    self.advised[block.index()] = false;
                    if matches!(desk.place(block), Place::Host | Place::Unpopulated) {
                        wanted.push(block);
                    }
                }
            }
            self.next += 1;
            if !wanted.is_empty() {
                desk.prefetch(&wanted, Room::Take);
            }
        }
    }

    fn finished(&mut self, launch: Launch) {
        while let Some(layer) = self.hints.get(self.last)
            && layer.last <= launch
        {
            self.last += 1;
            for &id in &layer.advise {
                for block in self.tensors.blocks(id) {
                    if !std::mem::replace(&mut self.advised[block.index()], true) {
                        self.victims.push_back(block);
                    }
                }
            }
        }
    }
}

impl FuturePolicy for OcDnn<'_> {
    fn notice(&mut self, notice: FutureNotice<'_>, desk: &mut Desk<'_>) {
        match notice {
            FutureNotice::Starting(launch) => self.starting(launch, desk),
            FutureNotice::Finished(launch) => self.finished(launch),
            FutureNotice::Driver(DriverNotice::Evicted { block, .. }) => {
                self.advised[block.index()] = false;
            }
            _ => {}
        }
    }

    fn victim(&mut self, desk: &Desk<'_>) -> Option<Block> {
        while let Some(block) = self.victims.pop_front() {
            if std::mem::take(&mut self.advised[block.index()])
                && desk.place(block) == Place::Device
            {
                return Some(block);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::checks;
    use super::super::samples::Training;
    use super::*;

    #[test]
    fn outputs_are_prefetched_and_inputs_advised_forward_and_the_reverse_backward() {
        let training = Training::SMALL;
        let program = training.program();
        let tensors = Tensors::of(Future {
            program: &program,
            lifetimes: true,
        });
        let layers = hints(&tensors);
        let regions = |ids: &[TensorId]| {
            ids.iter()
                .map(|&id| tensors.get(id).region)
                .collect::<Vec<_>>()
        };
        let forward = &layers[3];
        assert_eq!(forward.first, training.forward(0, 3));
        assert_eq!(regions(&forward.prefetch), [training.activation(3)]);
        assert_eq!(regions(&forward.advise), [training.activation(2)]);
        let backward = layers
            .iter()
            .find(|l| l.first == training.backward(0, 3))
            .unwrap();
        assert_eq!(regions(&backward.prefetch), [training.activation(2)]);
        // The gradient that came in; the one that goes out is the next layer's.
        assert_eq!(backward.advise.len(), 1);
        assert!(!regions(&backward.advise).contains(&training.activation(2)));
    }

    #[test]
    fn hints_take_less_time_than_none() {
        let program = Training::SMALL.program();
        let ours = checks::outcome(&program, &ENTRY, 32).steady();
        let driver = checks::outcome(&program, &super::super::driver::ENTRY, 32).steady();
        assert!(ours.time < driver.time, "{ours:?} {driver:?}");
    }

    #[test]
    fn it_keeps_the_contract_of_every_policy() {
        checks::contract(&ENTRY);
    }
}
