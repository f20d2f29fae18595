//! What a training step does, as data: allocations, launches and frees in order. The
//! program executes it; the footprint is computed from it.

use std::collections::BTreeMap;

use super::Network;

/// What is allocated and freed within a step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Tensor {
    /// Input of a layer; that of the last but one beyond is the network's output.
    Input(u64),
    /// A layer's sums before the activation.
    Pre(u64),
    /// Gradient of a layer's output, which is also that of the next layer's input.
    OutputGradient(u64),
    /// Gradient of a layer's sums.
    PreGradient(u64),
    /// Gradient of a layer's weights.
    Gradient(u64),
    /// The loss, summed by group.
    Partial,
}

/// A kernel on the tensors of a layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kernel {
    /// The batch into `Input(0)`.
    Batch,
    /// `Input(layer)` to `Pre(layer)` and `Input(layer + 1)`.
    Forward(u64),
    /// The network's output to `OutputGradient` of the last layer and `Partial`.
    Loss,
    /// `Pre(layer)` and `OutputGradient(layer)` to `PreGradient(layer)`.
    ActivationGrad(u64),
    /// `PreGradient(layer)` and `Input(layer)` to `Gradient(layer)`.
    WeightGrad(u64),
    /// `PreGradient(layer)` and `OutputGradient(layer)` to `OutputGradient(layer - 1)`.
    InputGrad(u64),
    /// `Gradient(layer)` to the layer's weights and moments.
    Adam(u64),
}

/// One act of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// Allocate.
    Allocate(Tensor),
    /// Launch.
    Launch(Kernel),
    /// Free.
    Free(Tensor),
    /// Copy the partial sums of the loss to the host.
    ReadLoss,
}

/// All acts of a step.
pub fn step(network: Network) -> Vec<Act> {
    use Act::{Allocate, Free, Launch, ReadLoss};
    use Tensor::{Gradient, Input, OutputGradient, Partial, Pre, PreGradient};
    let layers = network.layers;
    let mut acts = vec![Allocate(Input(0)), Launch(Kernel::Batch)];
    for layer in 0..layers {
        acts.extend([Allocate(Pre(layer)), Allocate(Input(layer + 1))]);
        acts.push(Launch(Kernel::Forward(layer)));
    }
    acts.extend([Allocate(OutputGradient(layers - 1)), Allocate(Partial)]);
    acts.extend([Launch(Kernel::Loss), Free(Input(layers))]);
    for layer in (0..layers).rev() {
        acts.extend([
            Allocate(PreGradient(layer)),
            Launch(Kernel::ActivationGrad(layer)),
        ]);
        acts.extend([Free(Pre(layer)), Allocate(Gradient(layer))]);
        acts.extend([Launch(Kernel::WeightGrad(layer)), Free(Input(layer))]);
        if layer > 0 {
            acts.push(Allocate(OutputGradient(layer - 1)));
            acts.push(Launch(Kernel::InputGrad(layer)));
        }
        acts.extend([Free(PreGradient(layer)), Free(OutputGradient(layer))]);
    }
    for layer in 0..layers {
        acts.extend([Launch(Kernel::Adam(layer)), Free(Gradient(layer))]);
    }
    acts.extend([ReadLoss, Free(Partial)]);
    acts
}

/// What a step allocates in all, bytes.
pub fn born_bytes(network: Network) -> u64 {
    step(network)
        .into_iter()
        .map(|act| {
            if let Act::Allocate(tensor) = act {
                network.tensor_bytes(tensor)
            } else {
                0
            }
        })
        .sum()
}

/// Most of a step's tensors that are live at one time, bytes.
pub fn peak_bytes(network: Network) -> u64 {
    let mut live: BTreeMap<Tensor, u64> = BTreeMap::new();
    let (mut now, mut peak) = (0, 0);
    for act in step(network) {
        match act {
            Act::Allocate(tensor) => {
                now += network.tensor_bytes(tensor);
                live.insert(tensor, network.tensor_bytes(tensor));
            }
            Act::Free(tensor) => now -= live.remove(&tensor).unwrap_or(0),
            Act::Launch(_) | Act::ReadLoss => {}
        }
        peak = peak.max(now);
    }
    peak
}

#[cfg(test)]
mod tests {
    use super::*;

    const NETWORK: Network = Network {
        layers: 5,
        groups: 512,
    };

    /// What a kernel reads or writes of a step's tensors.
    fn touched(kernel: Kernel) -> Vec<Tensor> {
        use Tensor::*;
        match kernel {
            Kernel::Batch => vec![Input(0)],
            Kernel::Forward(l) => vec![Input(l), Pre(l), Input(l + 1)],
            Kernel::Loss => vec![Input(5), OutputGradient(4), Partial],
            Kernel::ActivationGrad(l) => vec![Pre(l), OutputGradient(l), PreGradient(l)],
            Kernel::WeightGrad(l) => vec![PreGradient(l), Input(l), Gradient(l)],
            Kernel::InputGrad(l) => vec![PreGradient(l), OutputGradient(l), OutputGradient(l - 1)],
            Kernel::Adam(l) => vec![Gradient(l)],
        }
    }

    #[test]
    fn kernels_touch_only_what_is_live_and_a_step_leaves_nothing() {
        let mut live = std::collections::BTreeSet::new();
        for act in step(NETWORK) {
            match act {
                Act::Allocate(tensor) => assert!(live.insert(tensor), "{tensor:?} twice"),
                Act::Free(tensor) => assert!(live.remove(&tensor), "{tensor:?} is not live"),
                Act::Launch(kernel) => {
                    for tensor in touched(kernel) {
                        assert!(live.contains(&tensor), "{kernel:?} without {tensor:?}");
                    }
                }
                Act::ReadLoss => assert!(live.contains(&Tensor::Partial)),
            }
        }
        assert!(live.is_empty(), "{live:?}");
    }

    #[test]
    fn the_peak_is_all_gradients_and_what_the_last_layer_needs() {
        let gradients = 5 * NETWORK.weights() * 4;
        let peak = peak_bytes(NETWORK);
        assert!(peak >= gradients && peak < gradients + 6 * NETWORK.activations() * 4);
    }
}
