use super::*;
use crate::functions::Functions;

fn learnt<'a>(table: &'a Functions, parameters: Option<&[(usize, usize)]>) -> &'a Function {
    let layout = match parameters {
        None => Layout::unknown(),
        Some(list) => {
            let mut layout = Layout::empty();
            list.iter()
                .for_each(|(offset, bytes)| layout.push(*offset, *bytes));
            layout
        }
    };
    table.learn(64, b"k", &layout).unwrap().1
}

#[test]
fn words_come_from_the_list_of_parameters() {
    let table = Functions::new();
    let function = learnt(&table, Some(&[(0, 8), (8, 4), (12, 2), (14, 1), (16, 12)]));
    let (a, b, c, d, e) = (0x1122_u64, 7_u32, 9_u16, 3_u8, [1_u32, 2, 3]);
    let list: [*const c_void; 5] = [
        (&raw const a).cast(),
        (&raw const b).cast(),
        (&raw const c).cast(),
        (&raw const d).cast(),
        e.as_ptr().cast(),
    ];
    let mut room = Room::new();
    // SAFETY: the list matches the layout.
    let words = unsafe { gather(function, list.as_ptr(), ptr::null(), &mut room) };
    assert_eq!(words.words, [0x1122, 7, 9, 3, 1 | 2 << 32, 3]);
}

/// What kernels on lists of tensors take: one parameter of nearly 4 KiB, most of it pointers.
#[test]
fn a_parameter_of_hundreds_of_words_comes_whole() {
    let table = Functions::new();
    let function = learnt(&table, Some(&[(0, 8), (8, 4080), (4088, 8)]));
    let (first, last) = (3_u64, 4_u64);
    let lists: [u64; 510] = core::array::from_fn(|index| 1000 + index as u64);
    let list: [*const c_void; 3] = [
        (&raw const first).cast(),
        lists.as_ptr().cast(),
        (&raw const last).cast(),
    ];
    let mut room = Room::new();
    // SAFETY: the list matches the layout.
    let words = unsafe { gather(function, list.as_ptr(), ptr::null(), &mut room) };
    assert!(!words.truncated);
    assert_eq!((words.words[0], words.words[511]), (3, 4));
    assert_eq!(words.words[1..511], lists);
}

#[test]
fn words_come_from_a_packed_buffer_with_and_without_a_layout() {
    let table = Functions::new();
    let buffer: [u64; 3] = [0xa, 5 | 6 << 32, 0xb];
    let size = 20_usize;
    let extra: [*const c_void; 5] = [
        ptr::without_provenance(PARAM_BUFFER),
        buffer.as_ptr().cast(),
        ptr::without_provenance(PARAM_SIZE),
        (&raw const size).cast(),
        ptr::without_provenance(PARAM_END),
    ];
    let known = learnt(&table, Some(&[(0, 8), (8, 4), (12, 4), (16, 4), (20, 4)]));
    let mut room = Room::new();
    // SAFETY: the buffer has `size` bytes.
    let words = unsafe { gather(known, ptr::null(), extra.as_ptr(), &mut room) };
    assert_eq!(
        words.words,
        [0xa, 5, 6, 0xb],
        "the last one is beyond the buffer"
    );
    table.make_stale();
    let unknown = learnt(&table, None);
    let mut room = Room::new();
    // SAFETY: as above.
    let words = unsafe { gather(unknown, ptr::null(), extra.as_ptr(), &mut room) };
    assert_eq!(words.words, [0xa, 5 | 6 << 32, 0xb]);
}

#[test]
fn an_unknown_layout_or_no_arguments_give_no_words() {
    let table = Functions::new();
    let function = learnt(&table, None);
    let list: [*const c_void; 1] = [ptr::null()];
    let mut room = Room::new();
    // SAFETY: nothing is read.
    let words = unsafe { gather(function, list.as_ptr(), ptr::null(), &mut room) };
    assert!(words.words.is_empty());
    let mut room = Room::new();
    // SAFETY: nothing is read.
    let words = unsafe { gather(function, ptr::null(), ptr::null(), &mut room) };
    assert!(words.words.is_empty());
}
