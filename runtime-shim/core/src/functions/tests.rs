use proptest::prelude::*;

use super::*;

fn layout(parameters: &[(usize, usize)]) -> Layout {
    let mut layout = Layout::empty();
    for (offset, bytes) in parameters {
        layout.push(*offset, *bytes);
    }
    layout
}

#[test]
fn each_parameter_begins_a_new_word() {
    let layout = layout(&[(0, 8), (8, 4), (12, 1), (16, 20)]);
    let words: Vec<_> = layout
        .sources()
        .map(|s| (s.parameter, s.within, s.offset, s.bytes))
        .collect();
    let expected = [
        (0, 0, 0, 8),
        (1, 0, 8, 4),
        (2, 0, 12, 1),
        (3, 0, 16, 8),
        (3, 8, 24, 8),
        (3, 16, 32, 4),
    ];
    assert_eq!(words, expected);
    assert_eq!(layout.parameters, 4);
    assert!(!layout.truncated);
}

#[test]
fn parameters_beyond_a_record_are_cut_and_said_to_be() {
    let mut layout = Layout::empty();
    layout.push(0, MAX_LAUNCH_WORDS * 8);
    assert!(!layout.truncated);
    layout.push(MAX_LAUNCH_WORDS * 8, 4);
    assert!(layout.truncated);
    assert_eq!(layout.sources().count(), MAX_LAUNCH_WORDS);
    // One that begins within and ends beyond is cut itself; what follows it is left out.
    let mut layout = Layout::empty();
    layout.push(0, 8);
    layout.push(8, MAX_LAUNCH_WORDS * 8);
    layout.push(8 + MAX_LAUNCH_WORDS * 8, 8);
    assert!(layout.truncated);
    assert_eq!(
        (layout.sources().count(), layout.parameters),
        (MAX_LAUNCH_WORDS, 3)
    );
}

#[test]
fn hundreds_of_parameters_fit_and_those_of_too_many_sizes_in_turn_do_not() {
    let mut layout = Layout::empty();
    for index in 0..500 {
        layout.push(index * 8, 8);
    }
    assert!(!layout.truncated);
    let words = layout.sources().map(|s| (s.parameter, s.within, s.offset));
    assert!(words.eq((0..500).map(|index| (index, 0, index * 8))));
    // What does not follow at once, as alignment has it, begins a part of its own.
    let mut layout = Layout::empty();
    for index in 0..=MAX_PARTS {
        layout.push(index * 8, 4);
    }
    assert!(layout.truncated);
    assert_eq!(layout.sources().count(), MAX_PARTS);
    assert_eq!(layout.parameters as usize, MAX_PARTS + 1);
}

proptest! {
    #[test]
    fn each_word_is_where_the_parameters_have_it(
        sizes in prop::collection::vec((0usize..3, prop::sample::select(vec![1, 2, 4, 8, 12, 40])), 0..40),
    ) {
        let (mut layout, mut offset, mut expected) = (Layout::empty(), 0, Vec::new());
        for (parameter, (gap, bytes)) in sizes.into_iter().enumerate() {
            offset += gap * 4;
            layout.push(offset, bytes);
            for within in (0..bytes).step_by(8) {
                expected.push((parameter, within, offset + within, (bytes - within).min(8)));
            }
            offset += bytes;
        }
        let found = layout.sources().map(|s| {
            (usize::from(s.parameter), usize::from(s.within), usize::from(s.offset), usize::from(s.bytes))
        });
        prop_assert!(!layout.truncated);
        prop_assert_eq!(found.collect::<Vec<_>>(), expected);
    }
}

#[test]
fn a_learnt_kernel_keeps_its_number_and_name() {
    let table = Functions::new();
    assert!(table.find(64).is_none());
    let (number, _) = table.learn(64, b"saxpy", &layout(&[(0, 8)])).unwrap();
    let (other, _) = table.learn(128, b"gemm", &layout(&[])).unwrap();
    assert_ne!(number, other);
    let (found, function) = table.find(64).unwrap();
    assert_eq!((found, table.name(function)), (number, &b"saxpy"[..]));
    assert_eq!(table.iter().count(), 2);
}

#[test]
fn an_unloaded_module_makes_kernels_strangers_until_learnt_again() {
    let table = Functions::new();
    let (number, _) = table.learn(64, b"saxpy", &layout(&[(0, 8)])).unwrap();
    table.make_stale();
    assert!(table.find(64).is_none());
    let (again, function) = table.learn(64, b"other", &layout(&[])).unwrap();
    assert_eq!(again, number);
    assert_eq!(table.name(function), b"other");
    assert!(table.find(64).is_some());
}

#[test]
fn a_library_kernel_is_known_as_one_before_and_after_it_is_learnt() {
    let table = Functions::new();
    table.note_library_kernel(64);
    assert!(table.is_library_kernel(64) && !table.is_library_kernel(65));
    assert!(table.find(64).is_none());
    table.learn(64, b"k", &Layout::unknown()).unwrap();
    assert!(table.is_library_kernel(64) && table.find(64).is_some());
}

#[test]
fn a_full_table_refuses_new_kernels_and_still_finds_old_ones() {
    let table = Functions::new();
    for handle in 1..=MAX_FUNCTIONS as usize {
        table.learn(handle * 48, b"k", &Layout::empty()).unwrap();
    }
    assert!(table.learn(7, b"k", &Layout::empty()).is_none());
    assert!(table.find(7).is_none());
    assert!(table.find(48).is_some());
}
