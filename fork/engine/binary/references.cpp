// Tells of symbols, whose names a file has, how the libraries behind it on the
// command line hold them, and which of their own code and tables lead to them
// without the table of the dynamic linker (PLT, GOT), so that no other
// definition can take their place there. Of a name with a `?` in front it does
// not tell the latter. A function that is local to a source has the source's
// name in front: `fork.local.Cross.cpp..NAME`.
//
// Prints lines of words between tabs:
//   symbol NAME LIBRARY exported|protected|hidden
//   place NAME LIBRARY OFFSET ROOM TWINS
//     There it has a function, with as many bytes up to the next; other names
//     of the same code, between blanks.
//   variable NAME LIBRARY OFFSET SIZE (nothing)
//     There it has a variable or a table that it hides.
//   direct NAME LIBRARY FUNCTION FILE BEGIN END
//     FUNCTION, which lies there, holds the reference; FILE is its source where
//     it is local to it.
//   calls NAME LIBRARY FUNCTION FILE BEGIN END
//     The same where the reference is a call, or a jump.
//   uses NAME LIBRARY FUNCTION FILE BEGIN END
//     The same for a variable or a vtable that is reached through the table.
//   slot NAME LIBRARY OFFSET
//     There the linker puts the symbol's address when the process starts.
//   local @FILE LIBRARY FUNCTION
//     A function that is local to FILE; told when `@FILE` is among the names.
//   file * LIBRARY NAME
//     A source that it was made of; told when `*` is among the names.
#include <elf.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_set>
#include <vector>

namespace {

using Names = std::unordered_set<std::string>;

struct Symbol {
  uint64_t address;
  uint64_t size;
  const char* name;
  const char* file;
};

struct Wanted {
  uint64_t address;
  uint64_t end;
  const char* name;
  bool function;
  bool slot; // of the table: the place that has the symbol's address
};

// Prints a line of words.
template <typename... Words>
void say(std::string_view what, const Words&... words) {
  std::cout << what;
  ((std::cout << '\t' << words), ...);
  std::cout << '\n';
}

class Library {
 public:
  Library(const char* path, const Names& names, const Names& quiet)
      : path_(path),
        names_(names),
        quiet_(quiet),
        data_(std::filesystem::file_size(path), '\0') {
    std::ifstream(path, std::ios::binary).read(data_.data(), data_.size());
    const auto* header = reinterpret_cast<const Elf64_Ehdr*>(data_.data());
    if (data_.size() < sizeof(*header) ||
        header->e_ident[EI_CLASS] != ELFCLASS64) {
      std::cerr << path << " is no readable library of 64 bits\n";
      std::exit(1);
    }
    const auto* first =
        reinterpret_cast<const Elf64_Shdr*>(data_.data() + header->e_shoff);
    sections_ = {first, header->e_shnum};
  }

  void tell() {
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type == SHT_DYNSYM || section.sh_type == SHT_SYMTAB) {
        table(section, section.sh_type == SHT_DYNSYM);
      }
    }
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type == SHT_RELA) {
        slots(section);
      }
    }
    std::ranges::sort(symbols_, {}, &Symbol::address);
    std::ranges::sort(wanted_, {}, &Wanted::address);
    for (const Symbol& place : places_) {
      tell(place);
    }
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type == SHT_PROGBITS &&
          (section.sh_flags & SHF_EXECINSTR) != 0) {
        scan(section);
      } else if (section.sh_type == SHT_RELA) {
        relocations(section);
      }
    }
  }

 private:
  template <typename T>
  std::span<const T> rows(const Elf64_Shdr& section) const {
    const char* begin = data_.data() + section.sh_offset;
    return {reinterpret_cast<const T*>(begin), section.sh_size / sizeof(T)};
  }

  void table(const Elf64_Shdr& section, bool dynamic) {
    const char* strings = rows<char>(sections_[section.sh_link]).data();
    const char* file = "";
    for (const Elf64_Sym& symbol : rows<Elf64_Sym>(section)) {
      const char* name = strings + symbol.st_name;
      const int type = ELF64_ST_TYPE(symbol.st_info);
      const int binding = ELF64_ST_BIND(symbol.st_info);
      const int visibility = ELF64_ST_VISIBILITY(symbol.st_other);
      if (type == STT_FILE) {
        file = name;
        if (names_.count("*") != 0) {
          say("file", "*", path_, name);
        }
        continue;
      }
      if (symbol.st_shndx == SHN_UNDEF || type == STT_SECTION || !*name) {
        continue;
      }
      // The linker makes local what is hidden. Some say so, and others put it
      // behind the locals of all files, where no file is named.
      const bool own =
          binding == STB_LOCAL && visibility == STV_DEFAULT && *file;
      if (!dynamic) {
        symbols_.push_back(
            {symbol.st_value, symbol.st_size, name, own ? file : ""});
      }
      std::string known = name;
      if (own && type == STT_FUNC) {
        known = std::string("fork.local.") + file + ".." + name;
        const std::string all = std::string("@") + file;
        if (names_.count(all) != 0) {
          say("local", all, path_, name);
        }
      }
      const auto asked = names_.find(known);
      if (asked == names_.end()) {
        continue;
      }
      name = asked->c_str();
      if (dynamic) {
        exported_.insert(name);
        const bool bound = visibility == STV_PROTECTED;
        say("symbol", name, path_, bound ? "protected" : "exported");
      } else if (exported_.count(name) == 0) {
        say("symbol", name, path_, "hidden");
      }
      if (!dynamic && type == STT_FUNC) {
        places_.push_back({symbol.st_value, symbol.st_size, name, ""});
      }
      if (!dynamic && type == STT_OBJECT && !own &&
          exported_.count(name) == 0) {
        say("variable", name, path_, symbol.st_value, symbol.st_size, "");
      }
      // What is exported and no function is reached by the table alone, unless
      // the library is symbolic.
      const bool function = type == STT_FUNC || type == STT_GNU_IFUNC;
      if (quiet_.count(name) == 0 && type != STT_TLS &&
          (function || exported_.count(name) == 0)) {
        const uint64_t size =
            type == STT_FUNC ? 1 : std::max<uint64_t>(symbol.st_size, 1);
        wanted_.push_back(
            {symbol.st_value, symbol.st_value + size, name, function, false});
      }
    }
  }

  // Four bytes of code that, read as a distance from behind them, lead to a
  // wanted address, behind the byte of an instruction that takes a distance.
  void scan(const Elf64_Shdr& section) {
    if (wanted_.empty()) {
      return;
    }
    const uint64_t high =
        std::ranges::max_element(wanted_, {}, &Wanted::end)->end;
    const uint64_t low = wanted_.front().address - 4;
    const unsigned char* code = rows<unsigned char>(section).data();
    for (uint64_t n = 2; n + 4 <= section.sh_size; ++n) {
      int32_t distance = 0;
      std::memcpy(&distance, code + n, 4);
      const uint64_t target = section.sh_addr + n + 4 + distance;
      if (target < low || target >= high) {
        continue;
      }
      const uint64_t site = section.sh_addr + n;
      const bool relative = (code[n - 1] & 0xc7) == 0x05;
      const bool call = code[n - 1] == 0xe8 || code[n - 1] == 0xe9 ||
          (code[n - 2] == 0x0f && (code[n - 1] & 0xf0) == 0x80);
      const int more = relative ? number(code + n) : 0;
      for (const Wanted& one : holders(target)) {
        if (one.function ? call || (relative && code[n - 2] == 0x8d)
                         : relative && more == 0) {
          tell(one, site, one.function && call ? "calls" : "direct");
        }
      }
      for (const Wanted& one : holders(target + more)) {
        if (more != 0 && !one.function) {
          tell(one, site, "direct");
        }
      }
    }
  }

  // How many bytes of a number an instruction has behind its distance, by its
  // opcode, which stands two bytes before that.
  static int number(const unsigned char* distance) {
    switch (distance[-2]) {
      case 0x6b:
      case 0x80:
      case 0x83:
      case 0xc0:
      case 0xc1:
      case 0xc6:
        return 1;
      case 0x69:
      case 0x81:
      case 0xc7:
        return distance[-3] == 0x66 ? 2 : 4;
      case 0xf6: // only `test`, the first of the group, has one
        return (distance[-1] & 0x38) == 0 ? 1 : 0;
      case 0xf7:
        return (distance[-1] & 0x38) != 0 ? 0 : distance[-3] == 0x66 ? 2 : 4;
      default:
        return 0;
    }
  }

  std::vector<Wanted> holders(uint64_t target) const {
    std::vector<Wanted> result;
    auto next = std::ranges::upper_bound(wanted_, target, {}, &Wanted::address);
    while (next != wanted_.begin()) {
      --next;
      if (target < next->end) {
        result.push_back(*next);
      } else if (result.empty() ? target - next->address > (1 << 20) : true) {
        break;
      }
    }
    return result;
  }

  // Tables that the loader fills with addresses of this library, without names.
  void slots(const Elf64_Shdr& section) {
    const Elf64_Shdr& table = sections_[section.sh_link];
    const Elf64_Sym* symbols = rows<Elf64_Sym>(table).data();
    const char* strings = rows<char>(sections_[table.sh_link]).data();
    for (const Elf64_Rela& row : rows<Elf64_Rela>(section)) {
      const Elf64_Sym& symbol = symbols[ELF64_R_SYM(row.r_info)];
      const auto kind = ELF64_R_TYPE(row.r_info);
      const char* name = strings + symbol.st_name;
      if ((kind != R_X86_64_JUMP_SLOT && kind != R_X86_64_GLOB_DAT &&
           kind != R_X86_64_64) ||
          names_.count(name) == 0) {
        continue;
      }
      say("slot", name, path_, row.r_offset);
      if (quiet_.count(name) == 0 && kind == R_X86_64_GLOB_DAT &&
          ELF64_ST_TYPE(symbol.st_info) != STT_FUNC) {
        wanted_.push_back({row.r_offset, row.r_offset + 1, name, false, true});
      }
    }
  }

  void relocations(const Elf64_Shdr& section) {
    for (const Elf64_Rela& row : rows<Elf64_Rela>(section)) {
      if (ELF64_R_SYM(row.r_info) == 0) {
        for (const Wanted& one : holders(row.r_addend)) {
          tell(one, row.r_offset, "direct");
        }
      }
    }
  }

  // A function's padding is its own: the next begins at a multiple of 16, or
  // where a symbol says so.
  void tell(const Symbol& place) const {
    auto next =
        std::ranges::lower_bound(symbols_, place.address, {}, &Symbol::address);
    uint64_t end = (place.address + place.size + 15) / 16 * 16;
    std::string twins;
    for (; next != symbols_.end() && next->address == place.address; ++next) {
      if (std::strcmp(next->name, place.name) != 0) {
        twins += (twins.empty() ? "" : " ") + std::string(next->name);
      }
    }
    if (next != symbols_.end()) {
      end = std::min(end, next->address);
    }
    say("place", place.name, path_, place.address, end - place.address, twins);
  }

  void tell(const Wanted& one, uint64_t site, std::string_view kind) {
    auto next = std::ranges::upper_bound(symbols_, site, {}, &Symbol::address);
    Symbol by = {0, 0, "", ""};
    for (int steps = 0; next != symbols_.begin() && steps < 64; ++steps) {
      --next;
      if (site < next->address + next->size) {
        by = *next;
        break;
      }
    }
    kind = one.slot ? "uses" : kind;
    if (told_.emplace(kind, one.name, by.address).second) {
      const uint64_t end = by.address + by.size;
      say(kind, one.name, path_, by.name, by.file, by.address, end);
    }
  }

  const char* path_;
  const Names& names_;
  const Names& quiet_;
  std::string data_;
  std::span<const Elf64_Shdr> sections_;
  std::vector<Symbol> symbols_;
  std::vector<Wanted> wanted_;
  std::vector<Symbol> places_;
  Names exported_;
  std::set<std::tuple<std::string_view, std::string_view, uint64_t>> told_;
};

} // namespace

int main(int count, char** words) {
  Names names, quiet;
  std::ifstream asked(words[1]);
  for (std::string line; std::getline(asked, line);) {
    if (line[0] == '?') {
      line.erase(0, 1);
      quiet.insert(line);
    }
    names.insert(line);
  }
  for (int n = 2; n < count; ++n) {
    Library(words[n], names, quiet).tell();
  }
}
