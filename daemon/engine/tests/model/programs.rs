//! Programs for the model device: what real ones do to memory, in small.

use oversub_engine::{BLOCK_BYTES, Range};

/// One thing that a program does.
#[derive(Clone, Debug)]
pub enum Op {
    Alloc { range: Range, pool: bool },
    Free { address: u64 },
    Use { range: Range },
    Unuse { address: u64 },
    Launch(Kernel),
}

/// A kernel launch.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub function: u32,
    pub grid: [u32; 3],
    pub words: Vec<u64>,
    /// Blocks that it touches, in order.
    pub touches: Vec<u64>,
    pub duration_ns: u64,
    /// Its pointers say what it touches.
    pub declared: bool,
    pub ends_iteration: bool,
}

impl Kernel {
    fn new(function: u32, objects: &[Range], ns_per_block: u64) -> Self {
        let touches: Vec<u64> = objects
            .iter()
            .flat_map(|r| r.blocks())
            .map(|id| id.0)
            .collect();
        let bytes: u64 = objects.iter().map(|range| range.bytes).sum();
        Self {
            function,
            grid: [(bytes / 1024) as u32, 1, 1],
            words: objects
                .iter()
                .map(|range| range.address)
                .chain([bytes / 4])
                .collect(),
            duration_ns: ns_per_block * touches.len() as u64,
            touches,
            declared: true,
            ends_iteration: false,
        }
    }
}

const BASE: u64 = 0x7000_0000_0000;

fn blocks(first: u64, count: u64) -> Range {
    Range {
        address: BASE + first * BLOCK_BYTES,
        bytes: count * BLOCK_BYTES,
    }
}

fn end_iteration(program: &mut [Op]) {
    let mut launches = program.iter_mut().rev().filter_map(|op| match op {
        Op::Launch(kernel) => Some(kernel),
        _ => None,
    });
    launches.next().unwrap().ends_iteration = true;
}

/// Reads and writes `total` blocks in chunks, again and again.
pub fn sweep(total: u64, chunk: u64, iterations: u64, ns_per_block: u64) -> Vec<Op> {
    let mut program = vec![Op::Alloc {
        range: blocks(0, total),
        pool: false,
    }];
    for iteration in 0..iterations {
        for first in (0..total).step_by(chunk as usize) {
            let object = blocks(first, chunk.min(total - first));
            let mut kernel = Kernel::new(1, &[object], ns_per_block);
            kernel.words.push(iteration * 77 + 1);
            program.push(Op::Launch(kernel));
        }
        end_iteration(&mut program);
    }
    program
}

/// Layers with weights and two optimizer states each, activations born in the forward
/// pass and dead after their backward step, out of a pool.
pub fn train(layers: u64, weight: u64, activation: u64, iterations: u64, ns: u64) -> Vec<Op> {
    let state = |layer: u64, which: u64| blocks((layer * 3 + which) * weight, weight);
    let pool_first = layers * 3 * weight + 16;
    let act = |layer: u64| blocks(pool_first + layer * activation, activation);
    let grad = |layer: u64| blocks(pool_first + (layers + layer % 2) * activation, activation);
    let mut program = vec![Op::Alloc {
        range: blocks(pool_first, (layers + 2) * activation),
        pool: true,
    }];
    for layer in 0..layers {
        for which in 0..3 {
            program.push(Op::Alloc {
                range: state(layer, which),
                pool: false,
            });
        }
    }
    for _ in 0..iterations {
        for layer in 0..layers {
            program.push(Op::Use { range: act(layer) });
            let mut objects = vec![state(layer, 0)];
            if layer > 0 {
                objects.push(act(layer - 1));
            }
            objects.push(act(layer));
            program.push(Op::Launch(Kernel::new(1, &objects, ns)));
        }
        for layer in (0..layers).rev() {
            program.push(Op::Use { range: grad(layer) });
            let objects = [state(layer, 0), act(layer), grad(layer)];
            program.push(Op::Launch(Kernel::new(2, &objects, ns)));
            program.push(Op::Unuse {
                address: act(layer).address,
            });
            let objects = [state(layer, 0), state(layer, 1), state(layer, 2)];
            program.push(Op::Launch(Kernel::new(3, &objects, ns)));
            program.push(Op::Unuse {
                address: grad(layer).address,
            });
        }
        end_iteration(&mut program);
    }
    program
}

/// C = A x B by square tiles, `tiles` per side, out of core.
pub fn tiles(tiles: u64, tile: u64, iterations: u64, ns: u64) -> Vec<Op> {
    let matrix = |index: u64| blocks(index * tiles * tiles * tile, tiles * tiles * tile);
    let part = |index: u64, row: u64, column: u64| {
        blocks((index * tiles * tiles + row * tiles + column) * tile, tile)
    };
    let mut program: Vec<Op> = (0..3)
        .map(|index| Op::Alloc {
            range: matrix(index),
            pool: false,
        })
        .collect();
    for _ in 0..iterations {
        for row in 0..tiles {
            for column in 0..tiles {
                for k in 0..tiles {
                    let objects = [part(0, row, k), part(1, k, column), part(2, row, column)];
                    program.push(Op::Launch(Kernel::new(1, &objects, ns)));
                }
            }
        }
        end_iteration(&mut program);
    }
    program
}

/// Reads random blocks of a table, which is passed whole.
pub fn gather(total: u64, reads: u64, iterations: u64, ns: u64, seed: u64) -> Vec<Op> {
    let (table, out) = (blocks(0, total), blocks(total + 8, 4));
    let mut program = vec![
        Op::Alloc {
            range: table,
            pool: false,
        },
        Op::Alloc {
            range: out,
            pool: false,
        },
    ];
    let mut state = seed | 1;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for iteration in 0..iterations {
        for _ in 0..8 {
            let mut kernel = Kernel::new(1, &[out], ns);
            kernel.words = vec![table.address, out.address, reads, random()];
            let rows = (0..reads).map(|_| table.address / BLOCK_BYTES + random() % total);
            kernel.touches.extend(rows);
            kernel.grid = [4096, 1, 1];
            kernel.duration_ns = ns * kernel.touches.len() as u64;
            kernel.declared = false;
            program.push(Op::Launch(kernel));
        }
        let _ = iteration;
        end_iteration(&mut program);
    }
    program
}

/// A program put together from numbers: sweeps over chunks of plain allocations, with
/// pool parts that are born, used and die in between.
pub fn mixture(total: u64, chunk: u64, parts: u64, iterations: u64, picks: &[u8]) -> Vec<Op> {
    let pool_first = total + 16;
    let mut program = vec![
        Op::Alloc {
            range: blocks(0, total),
            pool: false,
        },
        Op::Alloc {
            range: blocks(pool_first, parts * 2),
            pool: true,
        },
    ];
    let chunks = total / chunk;
    for _ in 0..iterations {
        let mut live = vec![false; parts as usize];
        for &pick in picks {
            let part = u64::from(pick) % parts;
            let range = blocks(pool_first + part * 2, 2);
            let object = blocks((u64::from(pick) % chunks) * chunk, chunk);
            let alive = &mut live[part as usize];
            match pick % 3 {
                0 if *alive => program.push(Op::Unuse {
                    address: range.address,
                }),
                0 => program.push(Op::Use { range }),
                _ => {}
            }
            if pick % 3 == 0 {
                *alive = !*alive;
            }
            let mut objects = vec![object];
            if *alive {
                objects.push(range);
            }
            program.push(Op::Launch(Kernel::new(
                u32::from(pick % 5),
                &objects,
                100_000,
            )));
        }
        for part in (0..parts).filter(|&part| live[part as usize]) {
            program.push(Op::Unuse {
                address: blocks(pool_first + part * 2, 2).address,
            });
        }
        end_iteration(&mut program);
    }
    program
}

/// Sweeps one half of its memory for a while, then the other with other kernels.
pub fn phases(total: u64, chunk: u64, iterations: u64, ns: u64) -> Vec<Op> {
    let mut program = vec![
        Op::Alloc {
            range: blocks(0, total),
            pool: false,
        },
        Op::Alloc {
            range: blocks(total + 64, total),
            pool: false,
        },
    ];
    for phase in 0..2 {
        for _ in 0..iterations {
            for first in (0..total).step_by(chunk as usize) {
                let object = blocks(phase * (total + 64) + first, chunk.min(total - first));
                program.push(Op::Launch(Kernel::new(1 + phase as u32, &[object], ns)));
            }
            end_iteration(&mut program);
        }
    }
    program
}
