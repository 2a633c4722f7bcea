//! The expression grammar: C's postfix, unary and additive operators, casts, `expr@count` and `@address,size`.

/// A parsed expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    /// A variable, perhaps qualified (`ns::x`).
    Name(String),
    /// `$rdi`
    Register(String),
    /// A number.
    Number(u64),
    /// `*e`
    Deref(Box<Expr>),
    /// `&e`
    AddressOf(Box<Expr>),
    /// `-e`
    Negate(Box<Expr>),
    /// `e.name`
    Field(Box<Expr>, String),
    /// `e->name`
    Arrow(Box<Expr>, String),
    /// `e[i]`
    Index(Box<Expr>, Box<Expr>),
    /// `(type)e`
    Cast(TypeName, Box<Expr>),
    /// `a + b`
    Add(Box<Expr>, Box<Expr>),
    /// `a - b`
    Subtract(Box<Expr>, Box<Expr>),
    /// `e@n`: n elements from e on.
    Repeat(Box<Expr>, Box<Expr>),
    /// `@address,size`: plain bytes.
    Bytes(Box<Expr>, u64),
}

/// A type as written in a cast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeName {
    /// "unsigned long", "struct node", "ns::T".
    pub base: String,
    /// Number of `*`.
    pub pointers: usize,
}

/// A text that is no expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?}: {problem} at character {}", at + 1)]
pub struct ParseError {
    /// The whole text.
    pub text: String,
    /// What is wrong.
    pub problem: String,
    /// Byte offset.
    pub at: usize,
}

/// Deepest nesting accepted.
const MOST_DEPTH: usize = 100;

/// Parses an expression.
pub fn parse(text: &str) -> Result<Expr, ParseError> {
    let mut parser = Parser { text, at: 0, depth: 0 };
    parser.space();
    let expr = if parser.take("@") {
        let address = parser.sum()?;
        if !parser.take(",") {
            return Err(parser.error("expected \",SIZE\" after @ADDRESS"));
        }
        let size = parser.number()?.filter(|size| (1..=1 << 20).contains(size));
        let size = size.ok_or_else(|| parser.error("the size is a number from 1 to 1048576"))?;
        Expr::Bytes(Box::new(address), size)
    } else {
        let expr = parser.sum()?;
        if parser.take("@") { Expr::Repeat(Box::new(expr), Box::new(parser.sum()?)) } else { expr }
    };
    if parser.at < text.len() {
        return Err(parser.error("expected the end"));
    }
    Ok(expr)
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

const TYPE_WORDS: [&str; 14] = [
    "unsigned", "signed", "char", "short", "int", "long", "float", "double", "void", "struct", "union",
    "enum", "const", "bool",
];

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn take(&mut self, token: &str) -> bool {
        if self.rest().starts_with(token) {
            self.at += token.len();
            self.space();
            return true;
        }
        false
    }

    fn error(&self, problem: &str) -> ParseError {
        ParseError { text: self.text.to_owned(), problem: problem.to_owned(), at: self.at }
    }

    fn word(&mut self) -> Option<&'a str> {
        let rest = self.rest();
        let mut end = 0;
        while end < rest.len() {
            let tail = &rest[end..];
            let c = tail.chars().next()?;
            if c.is_alphanumeric() || c == '_' || (c == '~' && end == 0) {
                end += c.len_utf8();
            } else if tail.starts_with("::") && end > 0 {
                end += 2;
            } else {
                break;
            }
        }
        if end == 0 || rest.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        self.at += end;
        self.space();
        Some(&rest[..end])
    }

    fn number(&mut self) -> Result<Option<u64>, ParseError> {
        let rest = self.rest();
        if !rest.starts_with(|c: char| c.is_ascii_digit()) {
            return Ok(None);
        }
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let digits = rest[..end].trim_end_matches(['u', 'U', 'l', 'L']);
        let value = match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => digits.parse(),
        };
        let value = value.map_err(|_| self.error("not a number that fits 64 bits"))?;
        self.at += end;
        self.space();
        Ok(Some(value))
    }

    fn sum(&mut self) -> Result<Expr, ParseError> {
        self.depth += 1;
        if self.depth > MOST_DEPTH {
            return Err(self.error("nested too deeply"));
        }
        let mut left = self.unary()?;
        loop {
            if self.take("+") {
                left = Expr::Add(Box::new(left), Box::new(self.unary()?));
            } else if !self.rest().starts_with("->") && self.take("-") {
                left = Expr::Subtract(Box::new(left), Box::new(self.unary()?));
            } else {
                self.depth -= 1;
                return Ok(left);
            }
        }
    }

    fn unary(&mut self) -> Result<Expr, ParseError> {
        self.depth += 1;
        if self.depth > MOST_DEPTH {
            return Err(self.error("nested too deeply"));
        }
        let expr = if self.take("*") {
            Expr::Deref(Box::new(self.unary()?))
        } else if self.take("&") {
            Expr::AddressOf(Box::new(self.unary()?))
        } else if self.take("-") {
            Expr::Negate(Box::new(self.unary()?))
        } else if let Some(of) = self.cast()? {
            Expr::Cast(of, Box::new(self.unary()?))
        } else {
            self.postfix()?
        };
        self.depth -= 1;
        Ok(expr)
    }

    /// `(type)`, if that is what stands here: it has a type word or ends in `*`.
    fn cast(&mut self) -> Result<Option<TypeName>, ParseError> {
        let start = self.at;
        if !self.take("(") {
            return Ok(None);
        }
        let mut words = Vec::new();
        while let Some(word) = self.word() {
            words.push(word);
        }
        let mut pointers = 0;
        while self.take("*") {
            pointers += 1;
            while self.rest().starts_with("const") && self.word() == Some("const") {}
        }
        let is_type = words.iter().any(|word| TYPE_WORDS.contains(word)) || pointers > 0;
        if words.is_empty() || !is_type || !self.take(")") {
            self.at = start;
            return Ok(None);
        }
        words.retain(|word| *word != "const" && *word != "volatile");
        Ok(Some(TypeName { base: words.join(" "), pointers }))
    }

    fn postfix(&mut self) -> Result<Expr, ParseError> {
        let mut expr = self.primary()?;
        loop {
            if self.take("->") {
                let name = self.word().ok_or_else(|| self.error("expected a member's name"))?;
                expr = Expr::Arrow(Box::new(expr), name.to_owned());
            } else if self.take(".") {
                // Rust's tuple members are numbers.
                let name = match self.number()? {
                    Some(number) => format!("__{number}"),
                    None => self.word().ok_or_else(|| self.error("expected a member's name"))?.to_owned(),
                };
                expr = Expr::Field(Box::new(expr), name);
            } else if self.take("[") {
                let index = self.sum()?;
                if !self.take("]") {
                    return Err(self.error("expected ]"));
                }
                expr = Expr::Index(Box::new(expr), Box::new(index));
            } else {
                return Ok(expr);
            }
        }
    }

    fn primary(&mut self) -> Result<Expr, ParseError> {
        if self.take("(") {
            let inner = self.sum()?;
            if !self.take(")") {
                return Err(self.error("expected )"));
            }
            return Ok(inner);
        }
        if self.take("$") {
            let name = self.word().ok_or_else(|| self.error("expected a register's name after $"))?;
            return Ok(Expr::Register(name.to_owned()));
        }
        if let Some(number) = self.number()? {
            return Ok(Expr::Number(number));
        }
        let name = self.word().ok_or_else(|| self.error("expected a variable, a number or a register"))?;
        Ok(Expr::Name(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Box<Expr> {
        Box::new(Expr::Name(text.into()))
    }

    #[test]
    fn what_users_type() {
        assert_eq!(
            parse("p->next->count").unwrap(),
            Expr::Arrow(Box::new(Expr::Arrow(name("p"), "next".into())), "count".into())
        );
        assert_eq!(
            parse("a[3].x").unwrap(),
            Expr::Field(Box::new(Expr::Index(name("a"), Box::new(Expr::Number(3)))), "x".into())
        );
        let int = TypeName { base: "int".into(), pointers: 1 };
        let cast = Expr::Cast(int, Box::new(Expr::Number(0x7f00)));
        assert_eq!(
            parse("*(int *)0x7f00@4").unwrap(),
            Expr::Repeat(Box::new(Expr::Deref(Box::new(cast))), Box::new(Expr::Number(4)))
        );
        assert_eq!(parse("@0x10,16").unwrap(), Expr::Bytes(Box::new(Expr::Number(16)), 16));
        assert_eq!(parse(" $rdi ").unwrap(), Expr::Register("rdi".into()));
        assert_eq!(parse("a-b").unwrap(), Expr::Subtract(name("a"), name("b")));
        assert_eq!(parse("(x)").unwrap(), *name("x"));
        assert_eq!(parse("ns::x").unwrap(), *name("ns::x"));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (text, at) in
            [("", 0), ("a->", 3), ("a[1", 3), ("a b", 2), ("@5", 2), ("99999999999999999999", 0)]
        {
            assert_eq!(parse(text).unwrap_err().at, at, "{text}");
        }
        assert!(parse(&"(".repeat(100_000)).is_err());
        assert!(parse(&"*".repeat(100_000)).is_err());
    }
}
