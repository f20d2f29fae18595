//! `train`: a multilayer perceptron trained with Adam.
//!
//! A layer is a grouped linear map: its features are cut into groups of 32, each with
//! weights of its own, and groups are shifted by half a group from layer to layer so that
//! features mix. With a batch of 8, that gives what large networks have in plenty and
//! dense small ones lack: activations and gradients of the size of the weights, at little
//! arithmetic. [`plan`] says what a step does, [`reference`] computes it on the CPU.

pub mod plan;
pub mod reference;

use crate::args::{ArgumentError, check_bytes};
use crate::device::AdamStep;
use crate::sequence::derive;
use crate::size::MIB;
use plan::Tensor;

/// Features of a group.
pub const WIDTH: u64 = 32;
/// Samples of a batch.
pub const BATCH: u64 = 8;

/// Groups that hold 2 MiB of weights.
const GROUPS_PER_BLOCK: u64 = 2 * MIB / (WIDTH * WIDTH * 4);

/// Scale of the first weights.
pub const WEIGHT_SCALE: f32 = 0.125;

/// How many different batches there are.
const BATCHES: u32 = 4;

/// Size of the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    /// Layers.
    pub layers: u64,
    /// Groups of a layer.
    pub groups: u64,
}

impl Network {
    /// The largest network of about 24 layers whose footprint with stream-ordered
    /// allocation is at most `bytes`; with fewer bytes, fewer layers.
    pub fn within(bytes: u64) -> Result<Network, ArgumentError> {
        /// Bytes of a block of weights, two of moments, one of gradient.
        const BLOCK_OF_LAYER: u64 = 4 * 2 * MIB;
        const LAYERS: u64 = 24;
        let least = Network {
            layers: 2,
            groups: GROUPS_PER_BLOCK,
        };
        // A layer's elements are counted in 32 bits.
        check_bytes(bytes, least.bytes(), 1 << 40)?;
        let blocks = (bytes / (LAYERS * BLOCK_OF_LAYER)).max(1);
        let mut network = Network {
            layers: bytes / (blocks * BLOCK_OF_LAYER),
            groups: blocks * GROUPS_PER_BLOCK,
        };
        while network.bytes() > bytes && network.layers > 2 {
            network.layers -= 1;
        }
        Ok(network)
    }

    /// Weights of a layer.
    pub fn weights(self) -> u64 {
        self.groups * WIDTH * WIDTH
    }

    /// Activations of a layer for a batch.
    pub fn activations(self) -> u64 {
        self.groups * WIDTH * BATCH
    }

    /// What lives across steps: weights and two moments of each layer, bytes.
    pub fn persistent_bytes(self) -> u64 {
        3 * self.layers * crate::size::whole_blocks(self.weights() * 4)
    }

    /// What there is between backward pass and optimiser, and the optimiser reads: all that
    /// lives across steps, and every layer's gradient, bytes.
    pub fn carried_bytes(self) -> u64 {
        self.persistent_bytes() + self.layers * self.tensor_bytes(Tensor::Gradient(0))
    }

    /// Peak footprint with stream-ordered allocation, bytes.
    pub fn bytes(self) -> u64 {
        self.persistent_bytes() + crate::size::whole_blocks(plan::peak_bytes(self))
    }

    /// Length of a tensor, bytes.
    pub fn tensor_bytes(self, tensor: Tensor) -> u64 {
        match tensor {
            Tensor::Partial => self.groups * 4,
            Tensor::Gradient(_) => self.weights() * 4,
            Tensor::Input(_)
            | Tensor::Pre(_)
            | Tensor::OutputGradient(_)
            | Tensor::PreGradient(_) => self.activations() * 4,
        }
    }
}

/// Seed of the weights of layer `layer`.
pub fn weight_seed(seed: u32, layer: u64) -> u32 {
    derive(seed, 1000 + layer as u32)
}

/// Seeds of input and target of step `step`.
pub fn batch_seeds(seed: u32, step: u32) -> [u32; 2] {
    [
        derive(seed, 100 + step % BATCHES),
        derive(seed, 200 + step % BATCHES),
    ]
}

/// Adam's constants for step `step`, counted from 0. The bias corrections go into the
/// rate (Kingma and Ba, Adam, section 2).
pub fn adam(step: u32) -> AdamStep {
    const RATE: f64 = 0.003;
    let (beta1, beta2) = (0.9f32, 0.999f32);
    let t = f64::from(step) + 1.0;
    let correction = (1.0 - f64::from(beta2).powf(t)).sqrt() / (1.0 - f64::from(beta1).powf(t));
    AdamStep {
        rate: (RATE * correction) as f32,
        beta1,
        beta2,
        epsilon: 1e-8,
    }
}

/// The mean squared error that partial sums mean.
pub fn mean_loss(network: Network, partial: impl Iterator<Item = f32>) -> f64 {
    partial.map(f64::from).sum::<f64>() / network.activations() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_use_most_of_what_they_may_and_never_more() {
        for mib in [48u64, 64, 200, 512, 768, 1024, 4096, 100_000] {
            let network = Network::within(mib * MIB).expect("large enough");
            assert!(network.bytes() <= mib * MIB, "{mib}: {network:?}");
            assert!(
                mib < 200 || network.bytes() > mib * MIB * 9 / 10,
                "{mib}: {network:?}"
            );
        }
        assert!(Network::within(8 * MIB).is_err());
    }

    #[test]
    fn what_a_step_bears_is_a_third_of_the_footprint_and_more() {
        let network = Network::within(768 * MIB).expect("large enough");
        assert!(plan::born_bytes(network) * 3 > network.bytes());
        assert!(network.persistent_bytes() * 3 > network.bytes() * 2);
    }

    #[test]
    fn the_first_step_is_corrected_the_most() {
        assert!(adam(0).rate < adam(1000).rate * 1.01);
        assert!((f64::from(adam(0).rate) - 0.003 * 0.001f64.sqrt() / 0.1).abs() < 1e-6);
    }
}
