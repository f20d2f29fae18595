//! The training on the CPU: same operations in the same order as the kernels, so every
//! bit of every weight and moment must be the same. Weights are updated as soon as their
//! gradient is known, group by group, which changes no result.

use super::{BATCH, Network, WEIGHT_SCALE, WIDTH, adam, batch_seeds, weight_seed};
use crate::checksum;
use crate::device::AdamStep;
use crate::parallel::{self, vectorised};
use crate::sequence::{unit, word};

const W: usize = WIDTH as usize;
const B: usize = BATCH as usize;

/// A feature's values for the batch.
type Row = [f32; B];

/// Weights and moments of a layer, feature by feature.
struct Layer {
    w: Vec<[f32; W]>,
    m: Vec<[f32; W]>,
    v: Vec<[f32; W]>,
}

/// Checksum of all weights and moments, and of the partial losses of all steps behind
/// them, after `steps`.
pub fn reference(network: Network, steps: u32, seed: u32) -> u64 {
    let features = (network.groups * WIDTH) as usize;
    let mut layers: Vec<Layer> = (0..network.layers)
        .map(|layer| {
            let seed = weight_seed(seed, layer);
            let first = |feature: usize, k: usize| {
                unit(word((feature * W + k) as u32, seed)) * WEIGHT_SCALE
            };
            Layer {
                w: (0..features)
                    .map(|f| std::array::from_fn(|k| first(f, k)))
                    .collect(),
                m: vec![[0.0; W]; features],
                v: vec![[0.0; W]; features],
            }
        })
        .collect();
    let mut partials = Vec::new();
    for index in 0..steps {
        step(network, &mut layers, index, seed, &mut partials);
    }
    let length = network.weights();
    let sums = parallel::sum(layers.len(), |index| {
        let layer = &layers[index];
        let place = index as u64 * 3 * length;
        [&layer.w, &layer.m, &layer.v]
            .into_iter()
            .zip(0..)
            .fold(0u64, |sum, (part, i)| {
                sum.wrapping_add(checksum::of_floats(part.as_flattened(), place + i * length))
            })
    });
    sums.wrapping_add(checksum::of_floats(&partials, network.layers * 3 * length))
}

fn step(network: Network, layers: &mut [Layer], index: u32, seed: u32, partials: &mut Vec<f32>) {
    let features = (network.groups * WIDTH) as usize;
    let [input_seed, target_seed] = batch_seeds(seed, index);
    let value = |i: usize, seed: u32| unit(word(i as u32, seed));
    let mut inputs: Vec<Vec<Row>> = vec![
        (0..features)
            .map(|f| std::array::from_fn(|b| value(f * B + b, input_seed)))
            .collect(),
    ];
    let mut sums: Vec<Vec<Row>> = Vec::new();
    for layer in layers.iter() {
        let x = shift_up(&inputs[inputs.len() - 1]);
        let mut pre = vec![[0.0; B]; features];
        let mut y = vec![[0.0; B]; features];
        let span = span(features);
        let parts: Vec<_> = layer
            .w
            .chunks(span)
            .zip(x.chunks(span))
            .zip(pre.chunks_mut(span).zip(y.chunks_mut(span)))
            .collect();
        parallel::for_each(parts, |((w, x), (pre, y))| {
            vectorised(|| forward(w, x, pre, y))
        });
        sums.push(pre);
        inputs.push(y);
    }
    let output = inputs.pop().unwrap_or_default();
    let mut dy = output;
    for (i, d) in dy.as_flattened_mut().iter_mut().enumerate() {
        *d -= value(i, target_seed);
    }
    partials.extend(
        dy.as_flattened()
            .chunks(W * B)
            .map(|group| group.iter().fold(0.0f32, |sum, d| sum + d * d)),
    );
    let adam = adam(index);
    for ((layer, x), pre) in layers.iter_mut().zip(inputs).zip(sums).rev() {
        let x = shift_up(&x);
        let mut dx = vec![[0.0; B]; features];
        let span = span(features);
        let parts: Vec<_> = layer
            .w
            .chunks_mut(span)
            .zip(layer.m.chunks_mut(span).zip(layer.v.chunks_mut(span)))
            .zip(x.chunks(span).zip(pre.chunks(span)))
            .zip(dy.chunks(span).zip(dx.chunks_mut(span)))
            .collect();
        parallel::for_each(parts, |(((w, (m, v)), (x, pre)), (dy, dx))| {
            vectorised(|| backward([w, m, v], x, pre, dy, dx, adam));
        });
        dx.rotate_right(W / 2);
        dy = dx;
    }
}

/// Features that one processor takes: whole groups.
fn span(features: usize) -> usize {
    features
        .div_ceil(parallel::processors())
        .next_multiple_of(W)
}

/// The rows in the order in which the next layer reads them: from half a group on.
fn shift_up(rows: &[Row]) -> Vec<Row> {
    [&rows[W / 2..], &rows[..W / 2]].concat()
}

#[inline(always)]
fn forward(w: &[[f32; W]], x: &[Row], pre: &mut [Row], y: &mut [Row]) {
    for (feature, ((w, pre), y)) in w.iter().zip(pre).zip(y).enumerate() {
        let group = &x[feature / W * W..][..W];
        let mut sum = [0.0f32; B];
        for (w, x) in w.iter().zip(group) {
            for b in 0..B {
                sum[b] += w * x[b];
            }
        }
        *pre = sum;
        for b in 0..B {
            y[b] = x[feature][b] + sum[b] / (1.0 + sum[b].abs());
        }
    }
}

#[inline(always)]
fn backward(
    [w, m, v]: [&mut [[f32; W]]; 3],
    x: &[Row],
    pre: &[Row],
    dy: &[Row],
    dx: &mut [Row],
    adam: AdamStep,
) {
    for first in (0..w.len()).step_by(W) {
        let x = &x[first..][..W];
        let mut samples = [[0.0f32; W]; B];
        for (k, row) in x.iter().enumerate() {
            for b in 0..B {
                samples[b][k] = row[b];
            }
        }
        let mut back = [[0.0f32; B]; W];
        for feature in first..first + W {
            let mut dpre = [0.0f32; B];
            for b in 0..B {
                let s = 1.0 + pre[feature][b].abs();
                dpre[b] = dy[feature][b] / (s * s);
            }
            let mut g = [0.0f32; W];
            for (sample, d) in samples.iter().zip(dpre) {
                for k in 0..W {
                    g[k] += d * sample[k];
                }
            }
            let w = &mut w[feature];
            for (back, w) in back.iter_mut().zip(w.iter()) {
                for b in 0..B {
                    back[b] += w * dpre[b];
                }
            }
            let (m, v) = (&mut m[feature], &mut v[feature]);
            for k in 0..W {
                m[k] = adam.beta1 * m[k] + (1.0 - adam.beta1) * g[k];
                v[k] = adam.beta2 * v[k] + (1.0 - adam.beta2) * (g[k] * g[k]);
                w[k] -= adam.rate * m[k] / (v[k].sqrt() + adam.epsilon);
            }
        }
        for (k, back) in back.iter().enumerate() {
            for b in 0..B {
                dx[first + k][b] = dy[first + k][b] + back[b];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NETWORK: Network = Network {
        layers: 3,
        groups: 4,
    };

    #[test]
    fn other_seeds_steps_and_networks_have_other_checksums() {
        let sum = reference(NETWORK, 3, 1);
        assert_eq!(sum, reference(NETWORK, 3, 1));
        assert_ne!(sum, reference(NETWORK, 2, 1));
        assert_ne!(sum, reference(NETWORK, 3, 2));
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        // One step of plain descent in disguise: with beta1 = 0 and v kept at zero weight,
        // the first moment is the gradient of half the squared error.
        let features = W * 2;
        let noise = |seed: u32| -> Vec<Row> {
            (0..features)
                .map(|f| std::array::from_fn(|b| unit(word((f * B + b) as u32, seed))))
                .collect()
        };
        let w: Vec<[f32; W]> = (0..features)
            .map(|f| std::array::from_fn(|k| unit(word((f * W + k) as u32, 9)) * 0.125))
            .collect();
        let (x, target) = (noise(1), noise(2));
        let run = |w: &[[f32; W]]| {
            let (mut pre, mut y) = (vec![[0.0; B]; features], vec![[0.0; B]; features]);
            forward(w, &x, &mut pre, &mut y);
            (pre, y)
        };
        let loss = |w: &[[f32; W]]| -> f64 {
            let (_, y) = run(w);
            let pairs = y.as_flattened().iter().zip(target.as_flattened());
            pairs
                .map(|(y, t)| 0.5 * f64::from(y - t) * f64::from(y - t))
                .sum()
        };
        let (pre, y) = run(&w);
        let mut dy = y;
        for (d, t) in dy.as_flattened_mut().iter_mut().zip(target.as_flattened()) {
            *d -= t;
        }
        let (mut moved, mut m, mut v) = (w.clone(), w.clone(), w.clone());
        let mut dx = dy.clone();
        let plain = AdamStep {
            rate: 0.0,
            beta1: 0.0,
            beta2: 0.0,
            epsilon: 1.0,
        };
        backward([&mut moved, &mut m, &mut v], &x, &pre, &dy, &mut dx, plain);
        for (feature, k) in [(0, 0), (5, 31), (40, 7), (63, 16)] {
            let (mut up, mut down) = (w.clone(), w.clone());
            up[feature][k] += 1e-2;
            down[feature][k] -= 1e-2;
            let slope = (loss(&up) - loss(&down)) / 2e-2;
            let gradient = f64::from(m[feature][k]);
            assert!(
                (slope - gradient).abs() < 1e-2,
                "{feature}/{k}: {slope} and {gradient}"
            );
        }
    }

    #[test]
    fn the_loss_falls() {
        let mut layers = Vec::new();
        for layer in 0..NETWORK.layers {
            let seed = weight_seed(1, layer);
            let features = (NETWORK.groups * WIDTH) as usize;
            let first = |f: usize, k: usize| unit(word((f * W + k) as u32, seed)) * WEIGHT_SCALE;
            layers.push(Layer {
                w: (0..features)
                    .map(|f| std::array::from_fn(|k| first(f, k)))
                    .collect(),
                m: vec![[0.0; W]; features],
                v: vec![[0.0; W]; features],
            });
        }
        let mut partials = Vec::new();
        for index in 0..60 {
            step(NETWORK, &mut layers, index, 1, &mut partials);
        }
        let losses: Vec<f64> = partials
            .chunks(NETWORK.groups as usize)
            .map(|partial| super::super::mean_loss(NETWORK, partial.iter().copied()))
            .collect();
        assert!(losses[59] < losses[3] * 0.7, "{losses:?}");
    }
}
