//! Trains a multilayer perceptron with Adam: forward, backward, optimizer, step by step.
//! Weights and moments live for the whole run; activations, gradients and workspaces are
//! allocated and freed within a step.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, ValueEnum};
use oversub_workloads::args::{self, Common};
use oversub_workloads::caching::Caching;
use oversub_workloads::checksum;
use oversub_workloads::device::{Address, Device, Memory};
use oversub_workloads::mlp::plan::{self, Act, Kernel, Tensor};
use oversub_workloads::mlp::reference::reference;
use oversub_workloads::mlp::{Network, WEIGHT_SCALE, adam, batch_seeds, mean_loss, weight_seed};
use oversub_workloads::report::{Footprint, Report, timed_loop};
use oversub_workloads::size::MIB;

/// Trains a multilayer perceptron with Adam
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    common: Common,

    /// How memory that lives within a step is allocated
    #[arg(long, value_enum, default_value_t = Kind::Async)]
    allocator: Kind,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// The driver's, in stream order (cuMemAllocAsync)
    Async,
    /// The program's own cache over cuMemAlloc, as frameworks have
    Caching,
}

fn main() -> ExitCode {
    args::run(|arguments: &Arguments| &arguments.common, train)
}

fn train(arguments: &Arguments) -> anyhow::Result<Report> {
    let Common {
        seed,
        iterations,
        bytes,
        ..
    } = arguments.common;
    let network = Network::within(bytes.unwrap_or(768 * MIB))?;
    let iterations = iterations.unwrap_or(8);
    let device = arguments.common.open_device()?;
    let mut run = Run {
        device: &device,
        network,
        seed,
        layers: Layer::all(&device, network, seed)?,
        allocator: match arguments.allocator {
            Kind::Async => Allocator::Async,
            Kind::Caching => Allocator::caching(&device),
        },
        live: BTreeMap::new(),
        losses: Vec::new(),
    };
    device.synchronize()?;

    let acts = plan::step(network);
    let times = timed_loop("train", iterations, |step| {
        for act in &acts {
            run.execute(*act, step)?;
        }
        device.synchronize()?;
        let last = &run.losses[run.losses.len() - network.groups as usize..];
        let loss = mean_loss(network, last.iter().map(|bits| f32::from_bits(*bits)));
        Ok(Some(format!("loss {loss:.6}")))
    })?;

    let checksum = run.checksum()?;
    let footprint = Footprint {
        bytes: device.peak_bytes(),
        persistent_bytes: network.persistent_bytes(),
        born_bytes_per_iteration: plan::born_bytes(network),
        carried_bytes: network.carried_bytes(),
    };
    Ok(Report::new(
        "train",
        footprint,
        times,
        checksum,
        reference(network, iterations, seed),
    ))
}

/// Weights and moments of a layer.
struct Layer<'a> {
    w: Memory<'a>,
    m: Memory<'a>,
    v: Memory<'a>,
}

impl<'a> Layer<'a> {
    fn all(device: &'a Device, network: Network, seed: u32) -> anyhow::Result<Vec<Layer<'a>>> {
        let bytes = network.weights() * 4;
        (0..network.layers)
            .map(|layer| {
                let w = device.allocate(bytes)?;
                let m = device.allocate(bytes)?;
                let v = device.allocate(bytes)?;
                let seed = weight_seed(seed, layer);
                device.fill_f32(w.address(), network.weights(), seed, WEIGHT_SCALE)?;
                device.clear(m.address(), bytes)?;
                device.clear(v.address(), bytes)?;
                Ok(Layer { w, m, v })
            })
            .collect()
    }
}

type Reserve<'a> = Box<dyn FnMut(u64) -> anyhow::Result<u64> + 'a>;

/// Where a step's tensors come from.
enum Allocator<'a> {
    Async,
    Caching(Caching<Reserve<'a>>),
}

impl<'a> Allocator<'a> {
    fn caching(device: &'a Device) -> Allocator<'a> {
        let mut segments: Vec<Memory<'a>> = Vec::new();
        let reserve = move |bytes| {
            let segment = device.allocate(bytes)?;
            let address = segment.address().0;
            segments.push(segment);
            Ok(address)
        };
        Allocator::Caching(Caching::new(Box::new(reserve)))
    }

    fn allocate(&mut self, device: &Device, bytes: u64) -> anyhow::Result<Address> {
        match self {
            Allocator::Async => device.allocate_in_stream(bytes),
            Allocator::Caching(caching) => caching.allocate(bytes).map(Address),
        }
    }

    fn free(&mut self, device: &Device, address: Address, bytes: u64) -> anyhow::Result<()> {
        match self {
            Allocator::Async => device.free_in_stream(address, bytes),
            Allocator::Caching(caching) => Ok(caching.free(address.0)?),
        }
    }
}

/// The training under way.
struct Run<'a> {
    device: &'a Device,
    network: Network,
    seed: u32,
    layers: Vec<Layer<'a>>,
    allocator: Allocator<'a>,
    live: BTreeMap<Tensor, Address>,
    /// Partial sums of the loss of all steps, as bits.
    losses: Vec<u32>,
}

impl Run<'_> {
    fn execute(&mut self, act: Act, step: u32) -> anyhow::Result<()> {
        match act {
            Act::Allocate(tensor) => {
                let bytes = self.network.tensor_bytes(tensor);
                let address = self.allocator.allocate(self.device, bytes)?;
                self.live.insert(tensor, address);
                Ok(())
            }
            Act::Free(tensor) => {
                let address = self.at(tensor)?;
                self.live.remove(&tensor);
                self.allocator
                    .free(self.device, address, self.network.tensor_bytes(tensor))
            }
            Act::Launch(kernel) => self.launch(kernel, step),
            Act::ReadLoss => {
                let mut partial = vec![0u32; self.network.groups as usize];
                self.device.read(self.at(Tensor::Partial)?, &mut partial)?;
                self.losses.extend(partial);
                Ok(())
            }
        }
    }

    fn launch(&self, kernel: Kernel, step: u32) -> anyhow::Result<()> {
        use Tensor::{Gradient, Input, OutputGradient, Partial, Pre, PreGradient};
        let (device, network) = (self.device, self.network);
        let groups = u32::try_from(network.groups).context("too many groups for a launch")?;
        let [input_seed, target_seed] = batch_seeds(self.seed, step);
        let weights = |layer: u64| self.layers[layer as usize].w.address();
        match kernel {
            Kernel::Batch => {
                device.fill_f32(self.at(Input(0))?, network.activations(), input_seed, 1.0)
            }
            Kernel::Forward(layer) => device.mlp_forward(
                weights(layer),
                self.at(Input(layer))?,
                [self.at(Pre(layer))?, self.at(Input(layer + 1))?],
                groups,
            ),
            Kernel::Loss => device.mlp_loss(
                self.at(Input(network.layers))?,
                self.at(OutputGradient(network.layers - 1))?,
                self.at(Partial)?,
                groups,
                target_seed,
            ),
            Kernel::ActivationGrad(layer) => device.mlp_activation_grad(
                self.at(Pre(layer))?,
                self.at(OutputGradient(layer))?,
                self.at(PreGradient(layer))?,
                network.activations(),
            ),
            Kernel::WeightGrad(layer) => device.mlp_weight_grad(
                self.at(PreGradient(layer))?,
                self.at(Input(layer))?,
                self.at(Gradient(layer))?,
                groups,
            ),
            Kernel::InputGrad(layer) => device.mlp_input_grad(
                weights(layer),
                self.at(PreGradient(layer))?,
                [
                    self.at(OutputGradient(layer))?,
                    self.at(OutputGradient(layer - 1))?,
                ],
                groups,
            ),
            Kernel::Adam(layer) => {
                let Layer { w, m, v } = &self.layers[layer as usize];
                let gradient = self.at(Gradient(layer))?;
                let arrays = [w.address(), m.address(), v.address(), gradient];
                device.adam_step(arrays, network.weights(), adam(step))
            }
        }
    }

    fn at(&self, tensor: Tensor) -> anyhow::Result<Address> {
        self.live
            .get(&tensor)
            .copied()
            .with_context(|| format!("{tensor:?} is not allocated"))
    }

    fn checksum(&self) -> anyhow::Result<u64> {
        let length = self.network.weights();
        let mut place = 0;
        let mut sum = 0u64;
        for layer in &self.layers {
            for part in [&layer.w, &layer.m, &layer.v] {
                sum = sum.wrapping_add(self.device.checksum(part, length, place)?);
                place += length;
            }
        }
        Ok(sum.wrapping_add(checksum::of_words(&self.losses, place)))
    }
}
