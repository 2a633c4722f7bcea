//! Expressions that name a place: `balance`, `p->next->count`, `*p`, `a[3].x`, `*(int *)0x7f00@4`, `$rdi`,
//! `@0x7f00,16`.

mod bases;
mod contained;
mod evaluate;
mod globals;
mod members;
mod parse;
mod print;

pub use evaluate::{EvalError, FrameScope, Place, Where, evaluate};
pub use parse::{Expr, ParseError, TypeName, parse};
pub use print::print;
