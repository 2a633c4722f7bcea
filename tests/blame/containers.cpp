// What is inside the standard library's containers, references, members by their name alone.
#include <array>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace bank {
struct Account {
    int id;
    long balance;
    std::string owner;
};
struct Ledger {
    virtual ~Ledger() = default;
    long total = 0;
    std::array<int, 4> codes{};
};
struct Audited : Ledger {
    int audits = 0;
    void audit(long sum) {
        total = sum;  // TOTAL
        if (++audits == 3) abort();
    }
};
struct Bank {
    std::vector<Account> accounts;
    std::unique_ptr<Audited> ledger = std::make_unique<Audited>();
    std::shared_ptr<Account> best;
    void move(int from, int to, long amount) {
        Account &source = accounts[from];
        long &target = accounts[to].balance;
        source.balance -= amount;  // SOURCE
        target += amount;  // TARGET
        ledger->audit(accounts[0].balance + accounts[1].balance);
    }
};
}
static bank::Bank the_bank;

int main() {
    for (int i = 0; i < 3; i++) the_bank.accounts.push_back({i, 100 * i, "owner"});
    the_bank.best = std::make_shared<bank::Account>(bank::Account{9, 900, "best"});
    the_bank.best->balance++;  // BEST
    the_bank.ledger->codes[2] = 42;  // CODE
    for (int i = 0; i < 3; i++) the_bank.move(1, 2, 10 + i);
}
