//! Programs made from a few numbers and a seed: the access patterns of the field, in small,
//! for property tests, benchmarks and exhaustive comparison. Not a model of any one program.

mod solvers;

use super::builder::{BuildError, LaunchSpec, ProgramBuilder};
use super::indexed::Indexed;
use super::program::{Kind, Program};
use super::random::Random;
use crate::units::{BLOCK_BYTES, LEAF_BYTES, Nanos, Region};

/// First byte of the memory of a generated program.
const BASE: u64 = 0x7f00_0000_0000;

/// A pattern.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Family {
    /// The same memory in the same order, over and over: stencils, solvers.
    Sweep,
    /// Forward and backward over layers: weights and optimizer state that live on,
    /// activations that are born and die in stack order, two inputs in turn.
    Training,
    /// Training in which every third iteration only runs forward.
    Phases,
    /// Random rows of one large table.
    Gather,
    /// Rows of one large table of which a launch uses a few pages each, by an index, some hot.
    Rows,
    /// All weights for every token, and a cache that grows.
    Decode,
    /// A product of matrices in tiles.
    Tiles,
    /// Slices of a large table, each beside all of one vector and a slice of another; the vectors
    /// change roles: products of sparse matrices, ranks of pages, convolutions on graphs.
    Slices,
    /// Down and up a hierarchy of grids, each an eighth of the one before.
    Levels,
    /// A small model a few times, how often at random, then a large one once: drafts and their
    /// check, actors and critics.
    Turns,
    /// Training whose gradients are kept in one buffer, which a fill sets to zero before each step.
    Gradients,
    /// A few arrays, of which each kernel goes through one to three as a whole, often more than the
    /// device has: sorts, transforms, solvers.
    Passes,
    /// Some rows of a table and all weights for every token, and caches that each of them copies, with
    /// what is new, to memory that is free.
    Caches,
    /// A large array slice by slice, to and fro, beside slices of two smaller ones: transport along
    /// several directions.
    Directions,
    /// The same few kernels on one data set after the other, some times on each, whose results the
    /// host waits for: chains, ensembles, folds.
    Chains,
    /// A matrix in tiles, diagonal by diagonal, each from the edges of two tiles before it, to which
    /// no pointer leads: alignments, recurrences.
    Fronts,
}

impl Family {
    /// All of them.
    pub const ALL: [Family; 16] = [
        Self::Sweep,
        Self::Training,
        Self::Phases,
        Self::Gather,
        Self::Rows,
        Self::Decode,
        Self::Tiles,
        Self::Slices,
        Self::Levels,
        Self::Turns,
        Self::Gradients,
        Self::Passes,
        Self::Caches,
        Self::Directions,
        Self::Chains,
        Self::Fronts,
    ];

    /// Its name, for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sweep => "sweep",
            Self::Training => "training",
            Self::Phases => "phases",
            Self::Gather => "gather",
            Self::Rows => "rows",
            Self::Decode => "decode",
            Self::Tiles => "tiles",
            Self::Slices => "slices",
            Self::Levels => "levels",
            Self::Turns => "turns",
            Self::Gradients => "gradients",
            Self::Passes => "passes",
            Self::Caches => "caches",
            Self::Directions => "directions",
            Self::Chains => "chains",
            Self::Fronts => "fronts",
        }
    }

    /// A program of this family.
    pub fn program(self, shape: &Shape) -> Result<Program, BuildError> {
        let mut writer = Writer::new(self.name(), *shape);
        match self {
            Self::Sweep => sweep(&mut writer)?,
            Self::Training => training(&mut writer, u32::MAX)?,
            Self::Phases => training(&mut writer, 3)?,
            Self::Gather => gather(&mut writer)?,
            Self::Rows => rows(&mut writer)?,
            Self::Decode => decode(&mut writer)?,
            Self::Tiles => tiles(&mut writer)?,
            Self::Slices => slices(&mut writer)?,
            Self::Levels => levels(&mut writer)?,
            Self::Turns => turns(&mut writer)?,
            Self::Gradients => gradients(&mut writer)?,
            Self::Passes => passes(&mut writer)?,
            Self::Caches => caches(&mut writer)?,
            Self::Directions => solvers::directions(&mut writer)?,
            Self::Chains => solvers::chains(&mut writer)?,
            Self::Fronts => solvers::fronts(&mut writer)?,
        }
        Ok(writer.builder.finish())
    }
}

/// How large a generated program is, and how regular.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Of the random choices; the same seed gives the same program.
    pub seed: u64,
    /// Iterations.
    pub iterations: u32,
    /// Blocks of the footprint, about; at least 16 are used.
    pub blocks: u32,
    /// Launches of an iteration, about.
    pub launches: u32,
    /// Kernels, in percent, that read one block more, somewhere, and take longer or shorter by
    /// up to a half.
    pub noise_percent: u32,
    /// Duration of a launch for each block that it touches.
    pub block_time: Nanos,
    /// Objects end within a block and share it with the next.
    pub partial: bool,
}

impl Default for Shape {
    /// Small and regular: 64 blocks, 12 launches, 6 iterations, compute about as fast as a
    /// link of 16 GB/s.
    fn default() -> Self {
        Self {
            seed: 0,
            iterations: 6,
            blocks: 64,
            launches: 12,
            noise_percent: 0,
            block_time: Nanos::from_micros(130),
            partial: false,
        }
    }
}

struct Writer {
    builder: ProgramBuilder,
    random: Random,
    shape: Shape,
    /// Where the next region begins.
    top: u64,
    /// What noise may read.
    noise: Option<Region>,
    /// How much the next launch uses of what it reads by an index.
    indexed: Option<Indexed>,
    /// The pointers of the next launch, where they are not the starts of what it uses.
    pointers: Option<Vec<u64>>,
    /// The host waits for the next launch.
    sync: bool,
}

impl Writer {
    fn new(name: &str, shape: Shape) -> Self {
        let shape = Shape {
            blocks: shape.blocks.max(16),
            launches: shape.launches.max(1),
            ..shape
        };
        Self {
            builder: ProgramBuilder::new(name),
            random: Random::new(shape.seed),
            shape,
            top: BASE,
            noise: None,
            indexed: None,
            pointers: None,
            sync: false,
        }
    }

    /// Obtains memory from the driver.
    fn obtain(&mut self, blocks: u32) -> Result<Region, BuildError> {
        let region = Region {
            address: self.top,
            bytes: u64::from(blocks.max(1)) * BLOCK_BYTES,
        };
        self.builder.alloc(region.address, region.bytes)?;
        // A hole after it: neighbours in memory are not always one allocation.
        self.top = region.end() + BLOCK_BYTES;
        Ok(region)
    }

    /// Cuts a region into `count` parts of one size; with `partial` they end within blocks.
    fn cut(&self, region: Region, count: u32) -> Vec<Region> {
        let unit = if self.shape.partial {
            LEAF_BYTES / 2
        } else {
            BLOCK_BYTES
        };
        let count = u64::from(count.max(1)).min(region.bytes / unit).max(1);
        let bytes = region.bytes / unit / count * unit;
        (0..count)
            .map(|index| Region {
                address: region.address + index * bytes,
                bytes,
            })
            .collect()
    }

    fn hand_out(&mut self, region: Region) -> Result<(), BuildError> {
        self.builder.use_(region.address, region.bytes)
    }

    fn kernel(
        &mut self,
        name: &str,
        reads: &[Region],
        writes: &[Region],
    ) -> Result<(), BuildError> {
        self.launch(name, Kind::Kernel, reads, writes)
    }

    fn launch(
        &mut self,
        name: &str,
        kind: Kind,
        reads: &[Region],
        writes: &[Region],
    ) -> Result<(), BuildError> {
        let touched: u64 = match self.indexed {
            Some(indexed) => indexed.leaves * LEAF_BYTES,
            None => reads.iter().chain(writes).map(|region| region.bytes).sum(),
        };
        let mut time = self.shape.block_time.0 * touched.div_ceil(BLOCK_BYTES).max(1);
        let mut reads = reads.to_vec();
        // A copy says what it reads.
        if let Some(memory) = self.noise
            && kind == Kind::Kernel
            && self.random.chance(self.shape.noise_percent)
        {
            let block = self.random.below(memory.bytes / BLOCK_BYTES);
            let address = memory.address + block * BLOCK_BYTES;
            reads.push(Region {
                address,
                bytes: LEAF_BYTES,
            });
            time = time / 2 + self.random.below(time.max(1));
        }
        let mut spec = LaunchSpec::kernel(name, Nanos(time), &reads, writes);
        spec.kind = kind;
        spec.sync = std::mem::take(&mut self.sync);
        spec.indexed = self.indexed.take();
        let pointers = self.pointers.take();
        spec.pointers = pointers.as_deref();
        self.builder.launch(spec)?;
        Ok(())
    }
}

fn sweep(writer: &mut Writer) -> Result<(), BuildError> {
    let memory = writer.obtain(writer.shape.blocks)?;
    writer.hand_out(memory)?;
    writer.builder.host(&[], &[memory])?;
    writer.noise = Some(memory);
    let parts = writer.cut(memory, writer.shape.launches);
    for iteration in 0..writer.shape.iterations {
        writer.builder.iteration(u64::from(iteration))?;
        for (index, part) in parts.iter().enumerate() {
            let updated = std::slice::from_ref(part);
            let written = if index % 2 == 0 { updated } else { &[] };
            writer.kernel("sweep", updated, written)?;
        }
    }
    Ok(())
}

fn training(writer: &mut Writer, evaluate_every: u32) -> Result<(), BuildError> {
    let Shape {
        blocks,
        launches,
        iterations,
        ..
    } = writer.shape;
    let layers = (launches / 3).clamp(1, blocks / 8);
    let weights = writer.obtain(blocks / 4)?;
    let optimizer = writer.obtain(blocks / 4)?;
    let inputs = writer.obtain((blocks / 16).max(2))?;
    let arena = writer.obtain(blocks / 2 - (blocks / 16).max(2))?;
    for memory in [weights, optimizer, inputs] {
        writer.hand_out(memory)?;
    }
    writer.builder.host(&[], &[weights])?;
    writer.kernel("zero", &[], &[optimizer])?;
    writer.noise = Some(weights);
    let weights = writer.cut(weights, layers);
    let optimizer = writer.cut(optimizer, layers);
    let inputs = writer.cut(inputs, 2);
    let activations = writer.cut(arena, layers);
    for iteration in 0..iterations {
        writer.builder.iteration(u64::from(iteration))?;
        let mut last = inputs[iteration as usize % inputs.len()];
        writer.launch("memcpyHtoD", Kind::ToDevice, &[], &[last])?;
        for (weight, activation) in weights.iter().zip(&activations) {
            writer.hand_out(*activation)?;
            writer.kernel("forward", &[*weight, last], &[*activation])?;
            last = *activation;
        }
        let trains = !(iteration + 1).is_multiple_of(evaluate_every);
        for layer in (0..activations.len()).rev() {
            let activation = activations[layer];
            if trains {
                let both = [activation, weights[layer]];
                writer.kernel("backward", &both, &both[..1])?;
                let state = [weights[layer], optimizer[layer]];
                writer.kernel("step", &state, &state)?;
            }
            writer.builder.unuse(activation.address)?;
        }
    }
    Ok(())
}

fn gradients(writer: &mut Writer) -> Result<(), BuildError> {
    let Shape {
        blocks,
        launches,
        iterations,
        ..
    } = writer.shape;
    let layers = (launches / 3).clamp(1, blocks / 8);
    let weights = writer.obtain(blocks / 4)?;
    let gradients = writer.obtain(blocks / 4)?;
    let momenta = writer.obtain(blocks / 4)?;
    let arena = writer.obtain(blocks / 4)?;
    for memory in [weights, gradients, momenta] {
        writer.hand_out(memory)?;
    }
    writer.builder.host(&[], &[weights])?;
    writer.kernel("zero", &[], &[momenta])?;
    writer.noise = Some(weights);
    let [weights, slices, momenta, activations] =
        [weights, gradients, momenta, arena].map(|memory| writer.cut(memory, layers));
    for iteration in 0..iterations {
        writer.builder.iteration(u64::from(iteration))?;
        writer.launch("memset", Kind::Kernel, &[], &[gradients])?;
        let mut last = None;
        for (weight, activation) in weights.iter().zip(&activations) {
            writer.hand_out(*activation)?;
            let reads: Vec<Region> = last.into_iter().chain([*weight]).collect();
            writer.kernel("forward", &reads, &[*activation])?;
            last = Some(*activation);
        }
        for layer in (0..activations.len()).rev() {
            let reads = [activations[layer], weights[layer], slices[layer]];
            writer.kernel("backward", &reads, &reads[2..])?;
            writer.builder.unuse(activations[layer].address)?;
        }
        // The norm of the gradients is read by the host.
        writer.sync = true;
        writer.kernel("norm", &slices, &[])?;
        for layer in 0..activations.len() {
            let state = [weights[layer], momenta[layer], slices[layer]];
            writer.kernel("step", &state, &state[..2])?;
        }
    }
    Ok(())
}

fn gather(writer: &mut Writer) -> Result<(), BuildError> {
    let Shape {
        blocks,
        launches,
        iterations,
        ..
    } = writer.shape;
    let table = writer.obtain(blocks - blocks / 16)?;
    let output = writer.obtain(blocks / 16)?;
    writer.hand_out(table)?;
    writer.builder.host(&[], &[table])?;
    let rows = table.bytes / BLOCK_BYTES;
    for iteration in 0..iterations {
        writer.builder.iteration(u64::from(iteration))?;
        for _ in 0..launches {
            writer.hand_out(output)?;
            let mut reads: Vec<Region> = (0..rows.div_ceil(16))
                .map(|_| {
                    // The product of two uniform numbers: low rows are hot.
                    let limit = writer.random.below(rows) + 1;
                    let row = writer.random.below(limit);
                    let address = table.address + row * BLOCK_BYTES;
                    Region {
                        address,
                        bytes: BLOCK_BYTES,
                    }
                })
                .collect();
            reads.sort_unstable();
            reads.dedup();
            writer.pointers = Some(vec![table.address, output.address]);
            writer.kernel("gather", &reads, &[output])?;
            writer.builder.unuse(output.address)?;
        }
    }
    Ok(())
}

fn rows(writer: &mut Writer) -> Result<(), BuildError> {
    let Shape {
        blocks,
        launches,
        iterations,
        ..
    } = writer.shape;
    let table = writer.obtain(blocks - blocks / 16)?;
    let output = writer.obtain(blocks / 16)?;
    writer.hand_out(table)?;
    writer.hand_out(output)?;
    writer.builder.host(&[], &[table])?;
    // From no hot rows at all to few that are very hot.
    let skew = writer.random.below(4);
    let leaves = 1 + writer.random.below(10);
    let pages = leaves * (1 + writer.random.below(16));
    let updates = writer.random.chance(50);
    let rows = table.bytes / BLOCK_BYTES;
    for iteration in 0..iterations {
        writer.builder.iteration(u64::from(iteration))?;
        for launch in 0..launches {
            let mut used: Vec<Region> = (0..rows.div_ceil(16))
                .map(|_| {
                    let below = |rows: u64, random: &mut Random| random.below(rows) + 1;
                    let hot = (0..skew).fold(rows, |rows, _| below(rows, &mut writer.random));
                    let address = table.address + writer.random.below(hot) * BLOCK_BYTES;
                    Region {
                        address,
                        bytes: BLOCK_BYTES,
                    }
                })
                .collect();
            used.sort_unstable();
            used.dedup();
            let count = used.len() as u64;
            writer.indexed = Some(Indexed {
                pages: count * pages,
                leaves: count * leaves,
                bytes: None,
            });
            writer.pointers = Some(vec![table.address, output.address]);
            if updates && launch % 2 == 1 {
                let mut read = used.clone();
                read.push(output);
                writer.kernel("scatter", &read, &used)?;
            } else {
                writer.kernel("lookup", &used, &[output])?;
            }
        }
    }
    Ok(())
}

fn decode(writer: &mut Writer) -> Result<(), BuildError> {
    let Shape {
        blocks,
        launches,
        iterations,
        ..
    } = writer.shape;
    let layers = (launches / 2).clamp(1, blocks / 8);
    let growth = (blocks / 4 / iterations.max(1)).max(1);
    let weights = writer.obtain((blocks / 4).max(blocks.saturating_sub(growth * iterations)))?;
    let state = writer.obtain(1)?;
    for memory in [weights, state] {
        writer.hand_out(memory)?;
        writer.builder.host(&[], &[memory])?;
    }
    writer.noise = Some(weights);
    let weights = writer.cut(weights, layers);
    let mut caches: Vec<Vec<Region>> = vec![Vec::new(); weights.len()];
    for iteration in 0..iterations {
        writer.builder.iteration(u64::from(iteration))?;
        let cache = writer.obtain(growth)?;
        writer.hand_out(cache)?;
        for (layer, part) in writer.cut(cache, layers).into_iter().enumerate() {
            caches[layer].push(part);
        }
        for (weight, cache) in weights.iter().zip(&caches) {
            writer.kernel(
                "project",
                &[*weight, state],
                &cache[cache.len().saturating_sub(1)..],
            )?;
            writer.kernel("attend", cache, &[state])?;
        }
    }
    Ok(())
}

fn tiles(writer: &mut Writer) -> Result<(), BuildError> {
    let Shape {
        blocks,
        launches,
        iterations,
        ..
    } = writer.shape;
    // side^3 launches, 3 side^2 tiles.
    let mut side = 2;
    while (side + 1) * (side + 1) * (side + 1) <= launches && 3 * (side + 1) * (side + 1) <= blocks
    {
        side += 1;
    }
    let mut matrices = Vec::new();
    for filled in [true, true, false] {
        let memory = writer.obtain(blocks / 3)?;
        writer.hand_out(memory)?;
        if filled {
            writer.builder.host(&[], &[memory])?;
        }
        writer.noise = writer.noise.or(Some(memory));
        matrices.push(writer.cut(memory, side * side));
    }
    let tile = |matrix: usize, row: u32, column: u32| {
        let tiles: &[Region] = &matrices[matrix];
        tiles[(row * side + column) as usize % tiles.len()]
    };
    for iteration in 0..iterations {
        writer.builder.iteration(u64::from(iteration))?;
        for row in 0..side {
            for column in 0..side {
                let sum = tile(2, row, column);
                for step in 0..side {
                    let reads = [tile(0, row, step), tile(1, step, column), sum];
                    let read = if step == 0 { &reads[..2] } else { &reads };
                    writer.kernel("tile", read, &[sum])?;
                }
            }
        }
    }
    Ok(())
}

fn slices(writer: &mut Writer) -> Result<(), BuildError> {
    let Shape {
        blocks,
        launches,
        iterations,
        ..
    } = writer.shape;
    let table = writer.obtain(blocks / 2)?;
    let mut vectors = [writer.obtain(blocks / 4)?, writer.obtain(blocks / 4)?];
    for memory in [table, vectors[0], vectors[1]] {
        writer.hand_out(memory)?;
    }
    writer.builder.host(&[], &[table])?;
    writer.kernel("fill", &[], &vectors[..1])?;
    writer.noise = Some(table);
    let count = launches.min(blocks / 4).max(2);
    let table = writer.cut(table, count);
    for iteration in 0..iterations {
        writer.builder.iteration(u64::from(iteration))?;
        let [from, to] = vectors;
        for (slice, part) in table.iter().zip(writer.cut(to, count)) {
            writer.kernel("product", &[*slice, from], &[part])?;
        }
        writer.kernel("compare", &vectors, &[])?;
        vectors = [to, from];
    }
    Ok(())
}

fn levels(writer: &mut Writer) -> Result<(), BuildError> {
    let Shape {
        blocks,
        launches,
        iterations,
        ..
    } = writer.shape;
    // Two arrays on each level: the solution and what is left of the right-hand side.
    let mut grids = Vec::new();
    let mut size = blocks * 7 / 16;
    while size > 0 && grids.len() < 3 {
        let grid = [writer.obtain(size)?, writer.obtain(size)?];
        for memory in grid {
            writer.hand_out(memory)?;
        }
        grids.push(grid);
        size /= 8;
    }
    writer.builder.host(&[], &grids[0])?;
    for grid in &grids[1..] {
        writer.kernel("fill", &[], grid)?;
    }
    writer.noise = Some(grids[0][0]);
    let smoothings = (launches / 6).clamp(1, 4);
    for iteration in 0..iterations {
        writer.builder.iteration(u64::from(iteration))?;
        for level in 0..grids.len() {
            let [solution, rest] = grids[level];
            for _ in 0..smoothings {
                writer.kernel("smooth", &[solution, rest], &[solution])?;
            }
            if let Some([_, coarse]) = grids.get(level + 1) {
                writer.kernel("restrict", &[solution, rest], &[*coarse])?;
            }
        }
        for level in (0..grids.len() - 1).rev() {
            let ([fine, rest], [coarse, _]) = (grids[level], grids[level + 1]);
            writer.kernel("correct", &[coarse, fine], &[fine])?;
            for _ in 0..smoothings {
                writer.kernel("smooth", &[fine, rest], &[fine])?;
            }
        }
    }
    Ok(())
}

fn turns(writer: &mut Writer) -> Result<(), BuildError> {
    let Shape {
        blocks,
        launches,
        iterations,
        ..
    } = writer.shape;
    let small = writer.obtain(blocks / 5)?;
    let large = writer.obtain(blocks - blocks / 5 - 1)?;
    let state = writer.obtain(1)?;
    for memory in [small, large, state] {
        writer.hand_out(memory)?;
        writer.builder.host(&[], &[memory])?;
    }
    writer.noise = Some(large);
    let layers = (launches / 4).clamp(1, blocks / 5);
    let [small, large] = [small, large].map(|weights| writer.cut(weights, layers));
    for iteration in 0..iterations {
        writer.builder.iteration(u64::from(iteration))?;
        for _ in 0..2 + writer.random.below(3) {
            for layer in &small {
                writer.kernel("draft", &[*layer, state], &[state])?;
            }
        }
        for layer in &large {
            writer.kernel("check", &[*layer, state], &[state])?;
        }
    }
    Ok(())
}

fn passes(writer: &mut Writer) -> Result<(), BuildError> {
    let count = 3 + writer.random.below(3) as u32;
    // Allocations of their own, or side by side in one: parts that an allocator tells of, or what
    // the program cuts up by itself.
    let kind = writer.random.below(3);
    let arrays = if kind == 0 {
        let own = (0..count).map(|_| writer.obtain(writer.shape.blocks / count));
        own.collect::<Result<_, _>>()?
    } else {
        let memory = writer.obtain(writer.shape.blocks)?;
        writer.cut(memory, count)
    };
    for array in &arrays {
        if kind == 2 {
            writer.builder.host(&[], &[*array])?;
        } else {
            writer.hand_out(*array)?;
            writer.kernel("fill", &[], &[*array])?;
        }
    }
    writer.noise = Some(arrays[0]);
    let mut pick = || arrays[writer.random.below(u64::from(count)) as usize];
    let passes = (writer.shape.launches / 3).max(2);
    let passes: Vec<_> = (0..passes).map(|_| [pick(), pick(), pick()]).collect();
    for iteration in 0..writer.shape.iterations {
        writer.builder.iteration(u64::from(iteration))?;
        for (number, &[one, other, third]) in passes.iter().enumerate() {
            match number % 3 {
                0 => writer.kernel("count", &[one], &[])?,
                1 => writer.kernel("move", &[one], &[other])?,
                _ => writer.kernel("combine", &[one, other, third], &[third])?,
            }
        }
    }
    Ok(())
}

fn caches(writer: &mut Writer) -> Result<(), BuildError> {
    let Shape {
        blocks,
        launches,
        iterations,
        ..
    } = writer.shape;
    let layers = (launches / 3).clamp(1, blocks / 8);
    let table = writer.obtain(blocks / 8)?;
    let weights = writer.obtain(blocks * 3 / 8)?;
    let arena = writer.obtain(blocks - blocks / 8 - blocks * 3 / 8 - 1)?;
    let state = writer.obtain(1)?;
    for memory in [table, weights, state] {
        writer.hand_out(memory)?;
    }
    writer.builder.host(&[], &[table, weights])?;
    writer.noise = Some(weights);
    let weights = writer.cut(weights, layers);
    // Room for the cache of each layer, and for two copies.
    let mut free = writer.cut(arena, layers + 2);
    let spare = free.len().min(2);
    let mut caches = free.split_off(spare);
    for cache in &caches {
        writer.hand_out(*cache)?;
    }
    writer.kernel("fill", &[], &caches)?;
    let rows = table.bytes / BLOCK_BYTES;
    for iteration in 0..iterations {
        writer.builder.iteration(u64::from(iteration))?;
        let mut used: Vec<Region> = (0..rows.div_ceil(8))
            .map(|_| Region {
                address: table.address + writer.random.below(rows) * BLOCK_BYTES,
                bytes: BLOCK_BYTES,
            })
            .collect();
        used.sort_unstable();
        used.dedup();
        writer.pointers = Some(vec![table.address, state.address]);
        writer.kernel("embed", &used, &[state])?;
        for (weight, cache) in weights.iter().zip(&mut caches) {
            let copy = free.remove(writer.random.below(free.len() as u64) as usize);
            writer.hand_out(copy)?;
            writer.kernel("append", &[*cache, state], &[copy])?;
            writer.builder.unuse(cache.address)?;
            free.push(std::mem::replace(cache, copy));
            writer.kernel("attend", &[*cache, state], &[state])?;
            writer.kernel("project", &[*weight, state], &[state])?;
        }
        // The host reads what came of it.
        writer.sync = true;
        writer.kernel("sample", &[state], &[])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
