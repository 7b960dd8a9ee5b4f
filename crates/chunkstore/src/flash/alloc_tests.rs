use runtime::Rng;

use super::*;

#[test]
fn allocated_unit_is_allocated_once() {
    let mut rng = Rng::new(7);
    let mut alloc = Allocator::new(1000, 300);
    let mut held: Vec<Extent> = Vec::new();
    for step in 0..5000 {
        if step % 500 == 499 && alloc.can_grow() {
            alloc.set_ready((alloc.ready() + 100).min(1000));
        }
        if rng.one_in(2) {
            let near = held.last().map(|last| last.start + last.count);
            match alloc.take(rng.between(1, 20) as u32, near) {
                Some(extent) => {
                    assert!(extent.start + extent.count <= alloc.ready());
                    let apart = |other: &Extent| {
                        extent.start + extent.count <= other.start
                            || other.start + other.count <= extent.start
                    };
                    assert!(held.iter().all(apart), "{extent:?} is held");
                    held.push(extent);
                }
                None => assert_eq!(alloc.free_ready(), 0),
            }
        } else if !held.is_empty() {
            let index = rng.below(held.len() as u64) as usize;
            alloc.release(held.swap_remove(index));
        }
        let sum: u32 = held.iter().map(|extent| extent.count).sum();
        assert_eq!(alloc.used(), sum);
    }
}
