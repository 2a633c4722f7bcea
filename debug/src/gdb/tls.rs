//! Thread-local variables: gdb asks for an address by thread, offset and module. `libthread_db` would do it from
//! outside a process; this reads what it reads, the descriptions glibc exports for it (`nptl_db`'s `_thread_db_*`).

use object::{
    elf::PT_TLS,
    read::elf::{FileHeader as _, ProgramHeader as _},
};

use super::session::Session;
use crate::look;

impl Session<'_> {
    /// "THREAD,OFFSET,MODULE" in hex, the module by its link map (0: the only one).
    pub(super) fn thread_local(&mut self, arguments: &str) -> Option<u64> {
        let mut parts = arguments.split(',');
        let thread = super::front::thread_of(parts.next()?)?;
        let offset = u64::from_str_radix(parts.next()?, 16).ok()?;
        let map = u64::from_str_radix(parts.next()?, 16).ok()?;
        let thread = self.threads.iter().find(|own| own.tid == thread)?.clone();
        let machine = self.travel.machine();
        let cpu = machine.cpu().ok()?;
        let base = thread.registers(&look::kernel(machine)?, &cpu).ok()?.fs_base;
        // struct link_map (link.h): l_addr, l_name, l_ld, l_next, l_prev.
        if map == 0 || self.word(map.wrapping_add(32))? == 0 {
            // The executable's block lies right below the thread pointer (System V ABI x86-64, variant II).
            return Some(base.wrapping_sub(self.executable_block()?).wrapping_add(offset));
        }
        let module_at = self.described("_thread_db_link_map_l_tls_modid")?;
        let vector_at = self.described("_thread_db_pthread_dtvp")?;
        let module = self.word(map.wrapping_add(module_at))?;
        let vector = self.word(base.wrapping_add(vector_at))?;
        // dtv_t is two words, the first the address; all ones: not allocated yet.
        let block = self.word(vector.wrapping_add(module.checked_mul(16)?))?;
        (block != u64::MAX && block != 0).then(|| block.wrapping_add(offset))
    }

    fn word(&mut self, at: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        (self.read_memory(at, &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
    }

    /// Size of the executable's thread-local block with its alignment.
    fn executable_block(&mut self) -> Option<u64> {
        let path = self.program.executable.clone();
        let content = self.content(&path)?;
        let header = object::elf::FileHeader64::<object::Endianness>::parse(&*content).ok()?;
        let endian = header.endian().ok()?;
        let segments = header.program_headers(endian, &*content).ok()?;
        let segment = segments.iter().find(|segment| segment.p_type(endian) == PT_TLS)?;
        segment.p_memsz(endian).checked_next_multiple_of(segment.p_align(endian).max(1))
    }

    /// Offset of a field that glibc describes: three words of 32 bits, size in bits, count, offset in bytes.
    fn described(&mut self, symbol: &str) -> Option<u64> {
        let thread = self.threads.iter().find(|thread| thread.mm.is_some())?.clone();
        let space = {
            let kernel = look::kernel(self.travel.machine())?;
            look::address_space(&kernel, &thread, &mut self.files).ok()?
        };
        let at = space.modules().iter().find_map(|loaded| {
            let found = loaded.module.symbols.iter().find(|own| own.name == symbol)?;
            Some(found.address.wrapping_add(loaded.bias))
        })?;
        let mut words = [0; 12];
        (self.read_memory(at, &mut words) == words.len())
            .then(|| u64::from(u32::from_le_bytes([words[8], words[9], words[10], words[11]])))
    }
}
