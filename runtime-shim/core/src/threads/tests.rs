use std::sync::Barrier;
use std::thread;

use super::*;

#[test]
fn a_thread_is_inside_of_what_it_entered_until_it_leaves() {
    let threads = Threads::new();
    let outer = threads.enter(3);
    assert!(!threads.is_empty_but_for(3, None));
    assert!(threads.is_empty_but_for(3, Some(&outer)));
    assert!(threads.is_empty_but_for(4, None));
    let inner = threads.enter(5);
    assert!(!threads.is_empty_but_for(3, None), "still inside the outer");
    assert!(!threads.is_empty_but_for(5, None));
    drop(inner);
    assert!(threads.is_empty_but_for(5, None));
    assert!(!threads.is_empty_but_for(3, None));
    drop(outer);
    assert!(threads.is_empty_but_for(3, None));
}

#[test]
fn entered_twice_is_inside_but_for_more_than_one_of_them() {
    let threads = Threads::new();
    let first = threads.enter(3);
    let second = threads.enter(3);
    assert!(!threads.is_empty_but_for(3, Some(&second)));
    drop(second);
    assert!(threads.is_empty_but_for(3, Some(&first)));
}

#[test]
fn other_threads_are_seen_and_leave_their_own_entries_alone() {
    let threads = Threads::new();
    let (entered, leave) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            let entry = threads.enter(7);
            entered.wait();
            leave.wait();
            drop(entry);
        });
        entered.wait();
        let own = threads.enter(7);
        assert!(!threads.is_empty_but_for(7, Some(&own)));
        assert!(!threads.is_empty_but_for(7, None));
        drop(own);
        assert!(!threads.is_empty_but_for(7, None));
        leave.wait();
    });
    assert!(threads.is_empty_but_for(7, None));
}

#[test]
fn deeper_than_a_cell_can_say_is_counted_all_the_same() {
    let threads = Threads::new();
    let mut entries: Vec<Entry<'_>> = (0..12).map(|_| threads.enter(2)).collect();
    assert!(entries.last().unwrap().before == COUNTED);
    while let Some(entry) = entries.pop() {
        assert!(!threads.is_empty_but_for(2, None), "{}", entries.len());
        drop(entry);
    }
    assert!(threads.is_empty_but_for(2, None));
}

#[test]
fn more_threads_than_cells_are_all_seen() {
    let threads = Threads::new();
    let waiting = CELLS + 40;
    let (entered, leave) = (Barrier::new(waiting + 1), Barrier::new(waiting + 1));
    thread::scope(|scope| {
        for _ in 0..waiting {
            let small = thread::Builder::new().stack_size(64 << 10);
            let run = || {
                let entry = threads.enter(9);
                entered.wait();
                leave.wait();
                drop(entry);
            };
            small.spawn_scoped(scope, run).unwrap();
        }
        entered.wait();
        let cells = (0..CELLS).filter(|index| {
            let CacheLine(cell) = &threads.cells[*index];
            times_inside(cell.inside.load(Ordering::SeqCst), 9) == 1
        });
        let counted = threads.others.0[9].load(Ordering::SeqCst) as usize;
        assert_eq!(cells.count() + counted, waiting);
        assert!(counted >= 40, "{counted}");
        assert!(!threads.is_empty_but_for(9, None));
        leave.wait();
    });
    assert!(threads.is_empty_but_for(9, None));
}
