//! Patterns of solvers whose order of accesses is not that of memory.

use super::{BuildError, Shape, Writer};
use crate::units::{BLOCK_BYTES, Region};

pub(super) fn directions(writer: &mut Writer) -> Result<(), BuildError> {
    let Shape {
        blocks,
        launches,
        iterations,
        ..
    } = writer.shape;
    let angular = writer.obtain(blocks * 3 / 4)?;
    let source = writer.obtain(blocks / 8)?;
    let sum = writer.obtain(blocks / 8)?;
    for memory in [angular, source, sum] {
        writer.hand_out(memory)?;
    }
    writer.builder.host(&[], &[source])?;
    writer.kernel("fill", &[], &[angular])?;
    writer.noise = Some(source);
    let directions = 2 + writer.random.below(3) as u32 * 2;
    let count = (launches / directions).clamp(2, blocks / 8);
    let [parts, sources, sums] = [angular, source, sum].map(|memory| writer.cut(memory, count));
    let count = parts.len().min(sources.len()).min(sums.len());
    for iteration in 0..iterations {
        writer.builder.iteration(u64::from(iteration))?;
        writer.kernel("zero", &[], &[sum])?;
        for direction in 0..directions {
            for step in 0..count {
                let slice = if direction % 2 == 0 {
                    step
                } else {
                    count - 1 - step
                };
                let reads = [sums[slice], parts[slice], sources[slice]];
                writer.kernel("transport", &reads, &reads[..2])?;
            }
        }
        // The host reads how much has changed.
        writer.sync = true;
        writer.kernel("scatter", &[sum], &[source])?;
    }
    Ok(())
}

pub(super) fn chains(writer: &mut Writer) -> Result<(), BuildError> {
    let Shape {
        blocks,
        launches,
        iterations,
        ..
    } = writer.shape;
    let chains = (3 + writer.random.below(8) as u32).min(blocks / 5);
    let each = blocks / chains;
    let mut sets = Vec::new();
    for _ in 0..chains {
        let data = writer.obtain(each * 4 / 5)?;
        let state = writer.obtain(each - each * 4 / 5)?;
        writer.hand_out(data)?;
        writer.hand_out(state)?;
        writer.builder.host(&[], &[data])?;
        writer.noise = writer.noise.or(Some(data));
        sets.push([data, state]);
    }
    for [_, state] in &sets {
        writer.kernel("fill", &[], &[*state])?;
    }
    let steps = (launches / chains / 2).max(2);
    for iteration in 0..iterations {
        writer.builder.iteration(u64::from(iteration))?;
        for [data, state] in &sets {
            for _ in 0..steps {
                writer.kernel("propose", &[*state], &[*state])?;
                writer.sync = true;
                writer.kernel("likelihood", &[*data, *state], &[])?;
            }
        }
    }
    Ok(())
}

pub(super) fn fronts(writer: &mut Writer) -> Result<(), BuildError> {
    let Shape {
        blocks,
        launches,
        iterations,
        ..
    } = writer.shape;
    let memory = writer.obtain(blocks)?;
    writer.hand_out(memory)?;
    writer.noise = Some(memory);
    let mut side = 2;
    while (side + 1) * (side + 1) <= launches.min(blocks / 2) {
        side += 1;
    }
    let tiles = writer.cut(memory, side * side);
    let tile = |row: u32, column: u32| tiles[(row * side + column) as usize % tiles.len()];
    let edge = |of: Region| Region {
        address: of.end() - BLOCK_BYTES.min(of.bytes),
        bytes: BLOCK_BYTES.min(of.bytes),
    };
    for iteration in 0..iterations {
        writer.builder.iteration(u64::from(iteration))?;
        for diagonal in 0..2 * side - 1 {
            for row in diagonal.saturating_sub(side - 1)..=diagonal.min(side - 1) {
                let column = diagonal - row;
                let above = row.checked_sub(1).map(|row| edge(tile(row, column)));
                let before = column.checked_sub(1).map(|column| edge(tile(row, column)));
                let edges: Vec<Region> = above.into_iter().chain(before).collect();
                let own = tile(row, column);
                writer.pointers = Some(vec![own.address]);
                writer.kernel("front", &edges, &[own])?;
            }
        }
    }
    Ok(())
}
