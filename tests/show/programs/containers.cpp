// Containers, strings, exceptions, threads and atomics of the C++ library.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <iostream>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <unordered_map>
#include <vector>

int main() {
    std::mt19937_64 random(42);
    std::map<std::string, int> ordered;
    std::unordered_map<int, std::string> hashed;
    for (int i = 0; i < 3000; i++) {
        auto n = random() % 1000;
        ordered["key" + std::to_string(n)]++;
        hashed[static_cast<int>(n)] += static_cast<char>('a' + i % 26);
    }
    std::cout << ordered.size() << ' ' << ordered["key7"] << ' ' << hashed[7] << '\n';
    int thrown = 0;
    for (int i = 0; i < 200; i++) {
        try {
            if (i % 3 == 0) throw std::out_of_range(std::to_string(i));
            std::vector<int>(3).at(static_cast<size_t>(i % 5));
        } catch (const std::exception &error) {
            thrown++;
        }
    }
    std::cout << "thrown " << thrown << '\n';
    std::atomic<long> sum{0};
    std::mutex mutex;
    std::condition_variable turn;
    int next = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++)
        threads.emplace_back([&, t] {
            for (int i = 0; i < 5000; i++) sum += i ^ t;
            std::unique_lock lock(mutex);
            turn.wait(lock, [&] { return next == t; });
            std::cout << "thread " << t << '\n';
            next++;
            turn.notify_all();
        });
    for (auto &thread : threads) thread.join();
    std::cout << "sum " << sum << '\n';
    std::normal_distribution<double> normal;
    double total = 0;
    for (int i = 0; i < 2000; i++) total += normal(random);
    std::cout << std::hexfloat << total << std::defaultfloat << '\n';
    std::cout << std::regex_replace("the quick brown fox", std::regex("(\\w+) (\\w+)"), "$2 $1") << '\n';
    return 0;
}
