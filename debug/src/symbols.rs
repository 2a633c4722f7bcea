//! Names of guest kernel functions, from the System.map of its build.

/// Functions of the guest kernel by address.
#[derive(Clone, Debug, Default)]
pub struct KernelSymbols {
    functions: Vec<(u64, String)>,
}

impl KernelSymbols {
    /// From the text of a System.map: lines of "address type name".
    pub fn parse(map: &str) -> KernelSymbols {
        let mut functions: Vec<(u64, String)> = map
            .lines()
            .filter_map(|line| {
                let mut parts = line.split_whitespace();
                let (address, kind, name) = (parts.next()?, parts.next()?, parts.next()?);
                let address = u64::from_str_radix(address, 16).ok()?;
                matches!(kind, "t" | "T" | "w" | "W").then(|| (address, name.to_owned()))
            })
            .collect();
        functions.sort();
        KernelSymbols { functions }
    }

    /// The function an address lies in.
    pub fn name(&self, address: u64) -> Option<&str> {
        let after = self.functions.partition_point(|(start, _)| *start <= address);
        // Past the last function is no code.
        let (_, name) = self.functions[..after].last().filter(|_| after < self.functions.len())?;
        Some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lie_in_the_function_before_them() {
        let map = "ffffffff81000010 T b\nffffffff81000000 t a\nffffffff81000020 D data\nffffffff81000030 T end\nx\n";
        let symbols = KernelSymbols::parse(map);
        assert_eq!(symbols.name(0xffff_ffff_8100_0000), Some("a"));
        assert_eq!(symbols.name(0xffff_ffff_8100_0011), Some("b"));
        assert_eq!(symbols.name(0xffff_ffff_8100_0040), None);
        assert_eq!(symbols.name(0), None);
    }
}
