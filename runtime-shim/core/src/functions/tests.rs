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
    layout.push(4000, 4);
    assert!(layout.truncated);
    assert_eq!(layout.sources().count(), MAX_LAUNCH_WORDS);
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
