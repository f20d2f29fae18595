use super::*;
use crate::policy::samples::{BASE, Training, blocks, hand_out, launch};
use crate::trace::ProgramBuilder;

const TIME: Nanos = Nanos(1_000);

fn of(program: &Program) -> Tensors<'_> {
    Tensors::of(Future {
        program,
        lifetimes: true,
    })
}

fn at(tensors: &Tensors<'_>, region: Region) -> Vec<TensorId> {
    tensors
        .ids()
        .filter(|&id| tensors.get(id).region == region)
        .collect()
}

#[test]
fn an_activation_lives_from_its_forward_launch_to_its_backward_launch_in_each_iteration() {
    let training = Training::SMALL;
    let program = training.program();
    let tensors = of(&program);
    let lives = at(&tensors, training.activation(3));
    assert_eq!(lives.len(), 3);
    for (iteration, &id) in lives.iter().enumerate() {
        let tensor = tensors.get(id);
        let iteration = iteration as u32;
        assert_eq!(tensor.birth, training.forward(iteration, 3));
        assert_eq!(tensor.death.0, training.backward(iteration, 3).0 + 1);
        assert!(!tensor.persistent);
        let launches: Vec<Launch> = tensors.uses(id).iter().map(|u| u.launch).collect();
        let expected = [
            training.forward(iteration, 3),
            training.forward(iteration, 4),
            training.backward(iteration, 4),
        ];
        assert_eq!(launches, expected);
        assert!(!tensors.uses(id)[0].reads && tensors.uses(id)[0].writes);
        assert!(tensors.uses(id)[2].reads && !tensors.uses(id)[2].writes);
    }
}

#[test]
fn weights_are_one_tensor_for_the_whole_run_and_persistent() {
    let training = Training::SMALL;
    let program = training.program();
    let tensors = of(&program);
    let weights = at(&tensors, training.weights(2));
    assert_eq!(weights.len(), 1);
    assert!(tensors.get(weights[0]).persistent);
    assert_eq!(tensors.uses(weights[0]).len(), 6);
    assert_eq!(
        tensors.get(weights[0]).death.index(),
        program.launches().len()
    );
}

#[test]
fn a_gap_is_a_time_between_uses_that_ends_where_the_content_is_needed() {
    let training = Training::SMALL;
    let program = training.program();
    let tensors = of(&program);
    let first = at(&tensors, training.activation(1))[0];
    let gaps: Vec<Gap> = tensors.gaps(first).collect();
    let expected = Gap {
        tensor: first,
        from: training.forward(0, 2),
        to: training.backward(0, 2),
    };
    assert_eq!(gaps, [expected]);
}

#[test]
fn an_iteration_turns_where_most_is_alive() {
    let training = Training::SMALL;
    let program = training.program();
    let tensors = of(&program);
    for (index, iteration) in tensors.iterations().iter().enumerate() {
        // The first backward launch holds all activations and two gradients.
        assert_eq!(iteration.turn, training.backward(index as u32, 7));
        assert_eq!(iteration.turns, [iteration.turn]);
        assert_eq!(iteration.shape, tensors.iterations()[0].shape);
    }
    // Everything is alive there, and nothing is counted twice.
    assert_eq!(tensors.peak(), training.blocks() * BLOCK_BYTES);
    let turn = tensors.iterations()[1].turn;
    assert!(tensors.iterations()[1].turns_between(Launch(turn.0 - 1), turn));
    assert!(!tensors.iterations()[1].turns_between(turn, Launch(turn.0 + 1)));
}

#[test]
fn two_forward_and_backward_passes_in_an_iteration_have_a_turn_each() {
    let mut builder = ProgramBuilder::new("accumulation");
    builder.alloc(BASE, 8 * BLOCK_BYTES).unwrap();
    builder.iteration(0).unwrap();
    for _ in 0..2 {
        for layer in 0..4 {
            hand_out(&mut builder, blocks(layer, 1));
            launch(&mut builder, "forward", TIME, &[], &[blocks(layer, 1)]);
        }
        for layer in (0..4).rev() {
            launch(&mut builder, "backward", TIME, &[blocks(layer, 1)], &[]);
            builder.unuse(blocks(layer, 1).address).unwrap();
        }
    }
    let program = builder.finish();
    let tensors = of(&program);
    assert_eq!(tensors.iterations()[0].turns, [Launch(3), Launch(11)]);
}

#[test]
fn what_is_never_taken_back_is_cut_where_launches_name_it() {
    let mut builder = ProgramBuilder::new("tiles");
    builder.alloc(BASE, 8 * BLOCK_BYTES).unwrap();
    hand_out(&mut builder, blocks(0, 8));
    builder.iteration(0).unwrap();
    launch(&mut builder, "tile", TIME, &[blocks(0, 2)], &[blocks(4, 2)]);
    launch(&mut builder, "tile", TIME, &[blocks(2, 2)], &[blocks(4, 2)]);
    let program = builder.finish();
    let tensors = of(&program);
    let regions: Vec<Region> = tensors.ids().map(|id| tensors.get(id).region).collect();
    assert_eq!(regions, [blocks(0, 2), blocks(2, 2), blocks(4, 4)]);
    assert_eq!(tensors.uses(TensorId(2)).len(), 2);
}

#[test]
fn without_lifetimes_what_the_driver_gave_is_cut_and_never_dies() {
    let training = Training::SMALL;
    let program = training.program();
    let tensors = Tensors::of(Future {
        program: &program,
        lifetimes: false,
    });
    assert!(
        tensors
            .ids()
            .all(|id| tensors.get(id).death.index() == program.launches().len())
    );
    assert!(tensors.ids().all(|id| tensors.get(id).persistent));
    // The same regions, now with the uses of all iterations.
    let activation = at(&tensors, training.activation(3));
    assert_eq!(activation.len(), 1);
    assert_eq!(tensors.uses(activation[0]).len(), 9);
    // The next iteration overwrites the activation: nothing to keep in between.
    assert_eq!(tensors.gaps(activation[0]).count(), 3);
}

#[test]
fn neighbours_in_one_leaf_are_told_apart_by_the_arguments() {
    let half = LEAF_BYTES / 2;
    let first = Region {
        address: BASE,
        bytes: 4 * LEAF_BYTES + half,
    };
    let second = Region {
        address: first.end(),
        bytes: 4 * LEAF_BYTES + half,
    };
    let mut builder = ProgramBuilder::new("neighbours");
    builder.alloc(BASE, BLOCK_BYTES).unwrap();
    hand_out(&mut builder, first);
    hand_out(&mut builder, second);
    builder.iteration(0).unwrap();
    launch(&mut builder, "one", TIME, &[], &[first]);
    launch(&mut builder, "other", TIME, &[], &[second]);
    launch(&mut builder, "one", TIME, &[first], &[]);
    let program = builder.finish();
    let tensors = of(&program);
    let launches = |id| {
        tensors
            .uses(TensorId(id))
            .iter()
            .map(|u| u.launch.0)
            .collect::<Vec<_>>()
    };
    assert_eq!(launches(0), [0, 2]);
    assert_eq!(launches(1), [1]);
    assert_eq!(tensors.load(Launch(0)), BLOCK_BYTES);
}

#[test]
fn small_parts_are_not_listed_and_their_memory_counts_as_taken() {
    let mut builder = ProgramBuilder::new("small");
    builder.alloc(BASE, 4 * BLOCK_BYTES).unwrap();
    let bias = Region {
        address: BASE,
        bytes: 4096,
    };
    hand_out(&mut builder, bias);
    hand_out(&mut builder, blocks(1, 1));
    builder.iteration(0).unwrap();
    launch(&mut builder, "other", TIME, &[], &[blocks(1, 1)]);
    launch(&mut builder, "bias", TIME, &[bias], &[blocks(1, 1)]);
    let program = builder.finish();
    let tensors = of(&program);
    assert_eq!(tensors.len(), 1);
    assert_eq!(tensors.load(Launch(0)), BLOCK_BYTES);
    assert_eq!(tensors.load(Launch(1)), 2 * BLOCK_BYTES);
}

#[test]
fn a_role_finds_the_same_tensor_in_every_iteration() {
    let training = Training::SMALL;
    let program = training.program();
    let tensors = of(&program);
    let lives = at(&tensors, training.activation(5));
    let role = tensors.role(0, lives[0]).unwrap();
    assert_eq!(tensors.with_role(1, role), Some(lives[1]));
    assert_eq!(tensors.with_role(2, role), Some(lives[2]));
    assert_eq!(tensors.role(1, lives[0]), None);
    let weights = at(&tensors, training.weights(5))[0];
    let role = tensors.role(1, weights).unwrap();
    assert_eq!(tensors.with_role(2, role), Some(weights));
}

#[test]
fn times_are_those_of_an_undisturbed_run() {
    let training = Training::SMALL;
    let program = training.program();
    let tensors = of(&program);
    let launch = training.forward(1, 2);
    assert_eq!(tensors.start(launch), program.ideal(0..launch.0));
    assert_eq!(tensors.end(launch), program.ideal(0..launch.0 + 1));
    assert_eq!(tensors.launch_at(tensors.start(launch)), launch);
    assert_eq!(
        tensors.launch_at(Nanos(tensors.start(launch).0 - 1)),
        Launch(launch.0 - 1)
    );
    assert_eq!(
        tensors.launch_at(Nanos::NEVER).index(),
        program.launches().len() - 1
    );
}

#[test]
fn feature_maps_are_what_forward_made_and_backward_reads_again() {
    let training = Training::SMALL;
    let program = training.program();
    let tensors = of(&program);
    let maps = tensors.feature_maps();
    // Of the last activation forward and backward uses are neighbours; the loss reads it.
    assert_eq!(maps.len() as u64, 3 * (training.layers - 1));
    for map in &maps {
        assert!(!tensors.get(map.tensor).persistent);
    }
    let hidden = Tensors::of(Future {
        program: &program,
        lifetimes: false,
    });
    assert_eq!(hidden.feature_maps().len(), maps.len());
}

#[test]
fn a_layer_begins_with_each_weight() {
    let training = Training::SMALL;
    let program = training.program();
    let tensors = of(&program);
    let layers = tensors.layers(1);
    // The loss uses no weight: it belongs to the last layer of the forward pass.
    assert_eq!(layers.len() as u64, 2 * training.layers);
    assert_eq!(layers[3], training.forward(1, 3));
    assert_eq!(layers[8], training.backward(1, 7));
}
