// A field through two pointers. SPDX-License-Identifier: MIT
#include <cstdlib>
#include <memory>
#include <string>

namespace shop {
struct Price {
    int cents;
    bool reduced;
};
struct Item {
    std::string name;
    Price *price;
};
struct Order {
    Item *item;
};
Order *order;
} // namespace shop

static void reduce(shop::Item &item) {
    item.price->cents = 250; // REDUCED
    item.price->reduced = true;
}

int main() {
    shop::Order mine;
    shop::order = &mine;
    mine.item = new shop::Item{"tea", new shop::Price{300, false}};
    reduce(*mine.item);
    std::abort();
}
