//! vDNN: feature maps leave after their last forward use and come back a layer ahead.
//!
//! Rhu et al., MICRO'16, section 3: the input feature map of a layer is copied to the host
//! while the layer computes, and released, once its last consumer of the forward pass has
//! run (`Refcnt` in figure 7); in the backward pass, when a layer begins, the maps of the
//! nearest layer before it that has any on the host are fetched (`findPrefetchLayer`, figure
//! 10). vDNN_all offloads every feature map, vDNN_conv only the inputs of convolutions,
//! whose computation hides the copies; vDNN_dyn tries no offload, then the cheaper ones
//! first, and takes the first that fits (section 3.4).
//!
//! What it knows, as the paper's system does: the network's layers, which launch uses which
//! map, and sizes. It uses no times.
//!
//! Choices: this is vDNN_dyn without its choice of convolution algorithms, which a trace
//! has fixed. Matrix products count as convolutions (the paper has only networks of
//! those). A layer is a launch that uses a weight and those after it that do not. Copies
//! begin when the launch is over, and neither direction stops computation at the end of a
//! layer: vDNN's synchronisation there was dropped by vDNN++ (IPDPS'19), so this is the
//! kinder reading. Weights, gradients of weights and workspaces stay.

use std::collections::BTreeMap;

use super::swap::{Plan, Planned, budget};
use super::tensors::{Gap, Tensors};
use super::{Entry, Make};
use crate::class::{Future, FuturePolicy};
use crate::machine::Machine;
use crate::trace::Launch;

pub(super) const ENTRY: Entry = Entry {
    name: "vdnn",
    about: "vDNN (MICRO'16): feature maps out after forward, back one layer ahead",
    make: Make::Future(make),
};

fn make<'p>(machine: &Machine, future: Future<'p>) -> Box<dyn FuturePolicy + 'p> {
    Planned::make(machine, future, |machine, tensors| plan(machine, tensors))
}

/// A map on its way: where it is used before and after, and the launch that fetches it.
struct Offload {
    gap: Gap,
    fetch: Launch,
}

fn plan(machine: &Machine, tensors: &Tensors<'_>) -> Plan {
    let all = offloads(tensors, |_| true);
    let convolutions = offloads(tensors, |gap| feeds_convolution(tensors, gap));
    let chosen = if peak(tensors, &convolutions) <= budget(machine) {
        convolutions
    } else {
        all
    };
    Plan {
        outs: chosen.iter().map(|o| (o.gap.from, o.gap.tensor)).collect(),
        ins: chosen.iter().map(|o| (o.fetch, o.gap.tensor)).collect(),
    }
}

/// Whether a convolution of the forward pass reads the map.
fn feeds_convolution(tensors: &Tensors<'_>, gap: &Gap) -> bool {
    let forward = tensors
        .uses(gap.tensor)
        .iter()
        .take_while(|u| u.launch <= gap.from);
    forward.filter(|u| u.reads).any(|u| {
        let name = tensors.program().kernel_name(u.launch);
        ["conv", "mm", "linear"]
            .iter()
            .any(|part| name.contains(part))
    })
}

/// The feature maps that `wanted` takes, with the launch at which each is fetched: when the
/// layer begins whose maps are needed just before its own layer's.
fn offloads(tensors: &Tensors<'_>, wanted: impl Fn(&Gap) -> bool) -> Vec<Offload> {
    // By iteration and layer of the last forward use.
    let mut layers: BTreeMap<(usize, usize), Vec<Gap>> = BTreeMap::new();
    let starts: Vec<Vec<Launch>> = (0..tensors.iterations().len())
        .map(|iteration| tensors.layers(iteration))
        .collect();
    for gap in tensors.feature_maps().into_iter().filter(wanted) {
        let Some(iteration) = tensors.iteration_of(gap.from) else {
            continue;
        };
        let layer = starts[iteration].partition_point(|&start| start <= gap.from);
        layers.entry((iteration, layer)).or_default().push(gap);
    }
    let mut groups: Vec<(Launch, usize, Vec<Gap>)> = layers
        .into_iter()
        .filter_map(|((iteration, _), gaps)| {
            let need = gaps.iter().map(|gap| gap.to).min()?;
            Some((need, iteration, gaps))
        })
        .collect();
    groups.sort_by_key(|&(need, _, _)| need);
    let mut offloads = Vec::new();
    let mut before: Option<(Launch, usize)> = None;
    for (need, iteration, mut gaps) in groups {
        let turn = tensors.iterations()[iteration].turn;
        let fetch = match before {
            Some((launch, same)) if same == iteration => launch,
            _ => turn.min(need),
        };
        gaps.sort_by_key(|gap| gap.to);
        offloads.extend(gaps.into_iter().map(|gap| Offload {
            gap,
            fetch: fetch.max(Launch(gap.from.0 + 1)),
        }));
        before = Some((need, iteration));
    }
    offloads
}

/// The most that is on the device at once while these maps come and go.
fn peak(tensors: &Tensors<'_>, offloads: &[Offload]) -> u64 {
    let launches = tensors.program().launches().len();
    let mut gone = vec![0i64; launches + 1];
    for offload in offloads {
        let bytes = tensors.get(offload.gap.tensor).bytes() as i64;
        gone[offload.gap.from.index() + 1] += bytes;
        gone[offload.fetch.index()] -= bytes;
    }
    let mut away = 0;
    let loads = (0..launches).map(|at| {
        away += gone[at];
        tensors.load(Launch(at as u32)).saturating_add_signed(-away)
    });
    loads.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::checks::{self, machine};
    use super::super::samples::Training;
    use super::*;
    use crate::trace::Program;

    fn planned(program: &Program, frames: u32) -> (Tensors<'_>, Plan) {
        let tensors = Tensors::of(Future {
            program,
            lifetimes: true,
        });
        let plan = plan(&machine(frames), &tensors);
        (tensors, plan)
    }

    #[test]
    fn a_map_leaves_after_its_last_forward_use_and_is_fetched_one_layer_before_its_next() {
        let training = Training::SMALL;
        let program = training.program();
        let (tensors, plan) = planned(&program, 24);
        for layer in 0..training.layers - 2 {
            let map = tensors
                .ids()
                .find(|&id| tensors.get(id).region == training.activation(layer))
                .unwrap();
            assert!(plan.outs.contains(&(training.forward(0, layer + 1), map)));
            // Layer+1 reads it in its backward launch; layer+2 comes just before that.
            assert!(plan.ins.contains(&(training.backward(0, layer + 2), map)));
        }
    }

    #[test]
    fn weights_and_gradients_never_leave_by_plan() {
        let training = Training::SMALL;
        let program = training.program();
        let (tensors, plan) = planned(&program, 24);
        assert!(plan.outs.iter().all(|&(_, id)| !tensors.get(id).persistent));
        assert_eq!(plan.outs.len(), plan.ins.len());
    }

    #[test]
    fn it_takes_less_time_than_demand_paging_where_computation_hides_the_copies() {
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
