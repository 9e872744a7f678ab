//! Cursors of no batch.

use crate::receive::Cursor;

#[test]
fn a_cursor_of_no_batch_has_no_message_and_never_ends() {
    let place = Cursor::<u64>::idle();
    // SAFETY: a cursor of no batch.
    unsafe {
        let mut cursor = Cursor::<u64>::pick_up(place);
        for _ in 0..2 {
            assert!(cursor.is_idle());
            assert_eq!(cursor.peek(), None);
            assert!(!cursor.is_done());
            cursor.reload();
        }
    }
}

#[test]
fn a_cursor_that_is_done_from_the_start_has_no_message() {
    // SAFETY: a cursor of no batch.
    unsafe {
        let cursor = Cursor::<u64>::pick_up(Cursor::<u64>::done());
        assert_eq!(cursor.peek(), None);
        assert!(cursor.is_done());
    }
}
