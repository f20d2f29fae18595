//! Small programs that the tests of policies share.

use crate::trace::{Launch, LaunchSpec, Program, ProgramBuilder};
use crate::units::{BLOCK_BYTES, Nanos, Region};

/// First address of the samples' memory.
pub(super) const BASE: u64 = 1 << 40;

/// A network that is trained: each layer has weights and an activation, the backward pass
/// reads them again in reverse order, and updates the weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct Training {
    /// Layers.
    pub layers: u64,
    /// Iterations.
    pub iterations: u64,
    /// Blocks of one layer's weights.
    pub weights: u64,
    /// Blocks of one layer's activation, and of its gradient.
    pub activation: u64,
    /// Time of each launch, microseconds.
    pub launch_us: u64,
    /// No iteration launches the same kernels as another.
    pub varies: bool,
}

impl Training {
    /// Eight layers of one block of weights and four of activation, three iterations.
    pub const SMALL: Self = Self {
        layers: 8,
        iterations: 3,
        weights: 1,
        activation: 4,
        launch_us: 2_000,
        varies: false,
    };

    /// Launches of one iteration: forward, loss, backward.
    pub fn launches(&self) -> u32 {
        2 * self.layers as u32 + 1
    }

    /// The forward launch of a layer.
    pub fn forward(&self, iteration: u32, layer: u64) -> Launch {
        Launch(iteration * self.launches() + layer as u32)
    }

    /// The backward launch of a layer.
    pub fn backward(&self, iteration: u32, layer: u64) -> Launch {
        Launch(iteration * self.launches() + 2 * self.layers as u32 - layer as u32)
    }

    /// A layer's weights.
    pub fn weights(&self, layer: u64) -> Region {
        blocks(layer * self.weights, self.weights)
    }

    /// A layer's activation.
    pub fn activation(&self, layer: u64) -> Region {
        blocks(
            self.layers * self.weights + layer * self.activation,
            self.activation,
        )
    }

    /// Gradients take two turns in the same memory.
    fn gradient(&self, turn: u64) -> Region {
        let first = self.layers * (self.weights + self.activation);
        blocks(first + turn % 2 * self.activation, self.activation)
    }

    /// All memory, in blocks.
    pub fn blocks(&self) -> u64 {
        self.layers * (self.weights + self.activation) + 2 * self.activation
    }

    /// The program.
    pub fn program(&self) -> Program {
        let mut builder = ProgramBuilder::new("training");
        builder.alloc(BASE, self.blocks() * BLOCK_BYTES).unwrap();
        for layer in 0..self.layers {
            hand_out(&mut builder, self.weights(layer));
        }
        for iteration in 0..self.iterations {
            builder.iteration(iteration).unwrap();
            self.iteration(&mut builder, iteration);
        }
        builder.finish()
    }

    fn iteration(&self, builder: &mut ProgramBuilder, number: u64) {
        let kind = if self.varies { number } else { 0 };
        let time = Nanos::from_micros(self.launch_us);
        for layer in 0..self.layers {
            hand_out(builder, self.activation(layer));
            let mut reads = vec![self.weights(layer)];
            if layer > 0 {
                reads.push(self.activation(layer - 1));
            }
            let writes = [self.activation(layer)];
            launch(
                builder,
                &format!("forward{layer}_{kind}"),
                time,
                &reads,
                &writes,
            );
        }
        hand_out(builder, self.gradient(self.layers));
        let last = self.activation(self.layers - 1);
        launch(
            builder,
            "loss",
            time,
            &[last],
            &[self.gradient(self.layers)],
        );
        for layer in (0..self.layers).rev() {
            let mut reads = vec![self.gradient(layer + 1), self.weights(layer)];
            if layer > 0 {
                reads.push(self.activation(layer - 1));
            }
            hand_out(builder, self.gradient(layer));
            let writes = [self.gradient(layer), self.weights(layer)];
            launch(
                builder,
                &format!("backward{layer}_{kind}"),
                time,
                &reads,
                &writes,
            );
            builder.unuse(self.gradient(layer + 1).address).unwrap();
            builder.unuse(self.activation(layer).address).unwrap();
        }
        builder.unuse(self.gradient(0).address).unwrap();
    }
}

/// `count` blocks from the `first`th of the samples' memory.
pub(super) fn blocks(first: u64, count: u64) -> Region {
    Region {
        address: BASE + first * BLOCK_BYTES,
        bytes: count * BLOCK_BYTES,
    }
}

/// The allocator hands out a region.
pub(super) fn hand_out(builder: &mut ProgramBuilder, region: Region) {
    builder.use_(region.address, region.bytes).unwrap();
}

/// A kernel.
pub(super) fn launch(
    builder: &mut ProgramBuilder,
    name: &str,
    time: Nanos,
    reads: &[Region],
    writes: &[Region],
) -> Launch {
    builder
        .launch(LaunchSpec::kernel(name, time, reads, writes))
        .unwrap()
}
