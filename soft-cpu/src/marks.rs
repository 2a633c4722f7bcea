//! Which bytes of chosen RAM pages were written: byte for byte, at the cost of a second store beside each store.
//!
//! A page's mark page has one byte for each of its bytes, not zero once that was written. A page nobody asks about has
//! its marks in a page that is never read, so that a store need not ask which it is.

use std::ops::Range;

/// Bytes of a page, and of its marks.
const PAGE: usize = 4096;

/// What is stored for a byte written.
const WRITTEN: u8 = 0xff;

#[derive(Clone, Copy, Debug)]
#[repr(C, align(4096))]
struct MarkPage([u8; PAGE]);

/// See the module.
#[derive(Debug)]
pub(crate) struct Marks {
    /// For pages that are not followed.
    nowhere: Box<MarkPage>,
    /// The pages followed; `None` where one was dropped.
    followed: Vec<Option<u64>>,
    /// Their marks, in the same order.
    pages: Vec<MarkPage>,
    /// For each RAM page: its place in `pages` plus one; empty while none is followed.
    places: Vec<u16>,
}

impl Marks {
    /// Most pages that can be followed at once.
    pub(crate) const MOST: usize = u16::MAX as usize;

    pub(crate) fn new() -> Marks {
        Marks {
            nowhere: Box::new(MarkPage([0; PAGE])),
            followed: Vec::new(),
            pages: Vec::new(),
            places: Vec::new(),
        }
    }

    /// Follows these pages (ascending) of `of`, at most [`Marks::MOST`], from now on, and no others.
    pub(crate) fn follow(&mut self, pages: &[u64], of: usize) {
        for page in self.followed.drain(..).flatten() {
            self.places[page as usize] = 0;
        }
        self.pages.clear();
        if pages.is_empty() {
            return;
        }
        self.places.resize(of, 0);
        for &page in pages.iter().filter(|page| (**page as usize) < of).take(Marks::MOST) {
            self.followed.push(Some(page));
            self.pages.push(MarkPage([0; PAGE]));
            self.places[page as usize] = self.pages.len() as u16;
        }
    }

    /// Hands each page followed and the ranges written in it to `each`.
    pub(crate) fn written(&self, mut each: impl FnMut(u64, Vec<Range<u16>>)) {
        for (page, marks) in self.followed.iter().zip(&self.pages) {
            if let Some(page) = page {
                each(*page, ranges(&marks.0));
            }
        }
    }

    /// Follows this page no more. (Its marks stay where entries of the TLB may lead.)
    pub(crate) fn drop_page(&mut self, page: u64) {
        if let Some(place) = self.place(Some(page)) {
            self.places[page as usize] = 0;
            self.followed[place] = None;
        }
    }

    fn place(&self, index: Option<u64>) -> Option<usize> {
        usize::from(*self.places.get(index? as usize)?).checked_sub(1)
    }

    /// Host address of the marks of the page with this RAM index. It holds until the next `follow`.
    pub(crate) fn host(&mut self, index: Option<u64>) -> u64 {
        match self.place(index) {
            Some(place) => &raw mut self.pages[place] as u64,
            None => &raw mut *self.nowhere as u64,
        }
    }

    /// Marks the bytes of a store that did not go through the TLB. `at`: its address, of which the offset counts.
    pub(crate) fn mark(&mut self, index: Option<u64>, at: u64, len: usize) {
        if let Some(place) = self.place(index) {
            let at = at as usize & (PAGE - 1);
            self.pages[place].0[at..PAGE.min(at + len)].fill(WRITTEN);
        }
    }
}

/// The runs of written bytes.
fn ranges(marks: &[u8; PAGE]) -> Vec<Range<u16>> {
    let mut ranges: Vec<Range<u16>> = Vec::new();
    let (words, _) = marks.as_chunks::<8>();
    for (number, word) in words.iter().enumerate().filter(|(_, word)| **word != [0; 8]) {
        for (at, _) in word.iter().enumerate().filter(|(_, mark)| **mark != 0) {
            let at = (number * 8 + at) as u16;
            match ranges.last_mut() {
                Some(last) if last.end == at => last.end += 1,
                _ => ranges.push(at..at + 1),
            }
        }
    }
    ranges
}
